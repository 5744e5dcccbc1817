"""Groups of processes, as the program has made them."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from amanda.core import switches

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


def initialized() -> Any:
    """`torch.distributed`. Raises `RuntimeError` if it is not initialized."""
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_initialized():
        raise RuntimeError(
            "[distributed] torch.distributed has no process group; call torch.distributed.init_process_group first"
        )
    return dist


def gathered(make: Callable[[], Any], to: int, group: ProcessGroup | None) -> list[Any] | None:
    """The result of `make` on each rank; None on ranks other than `to`.

    If `make` fails, or its result cannot be pickled, this rank reports the error to `to`: the other ranks do not hang.

    Raises:
        RuntimeError: `torch.distributed` is not initialized; on rank `to`, another rank has failed.
        ValueError: the group has no rank `to`.
    """
    dist = initialized()
    size, rank = dist.get_world_size(group), dist.get_rank(group)
    if rank >= 0 and to not in range(size):  # -1: this process is not in the group
        raise ValueError(f"[distributed] to= is a rank of the group, which has {size}, got {to!r}")
    packed, failure = b"", None
    try:
        packed = pickle.dumps(make())
    except Exception as error:
        failure = error
    message = (packed, failure and f"{type(failure).__name__}: {failure}")
    found: list[Any] | None = [None] * size if rank == to else None
    with switches.disabled():
        dist.gather_object(message, found, group=group, group_dst=to)
    if failure is not None:
        raise failure
    if found is None:
        return None
    for number, (_, text) in enumerate(found):
        if text is not None:
            raise RuntimeError(f"[distributed] rank {number} has failed: {text}")
    return [pickle.loads(of_rank) for of_rank, _ in found]
