"""Groups of processes, as the program has made them."""

from __future__ import annotations

from typing import Any


def initialized() -> Any:
    """`torch.distributed`. Raises `RuntimeError` if it is not initialized."""
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_initialized():
        raise RuntimeError(
            "[distributed] torch.distributed has no process group; call torch.distributed.init_process_group first"
        )
    return dist
