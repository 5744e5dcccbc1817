"""Programs around a model in which every tool that edits must do what its page says."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import torch
from process_groups import destroy_group
from torch.utils.checkpoint import checkpoint

REGIMES = ["autocast", "checkpointing", "compiled code", "distributed training"]  # as the pages of docs/tools name them


@contextlib.contextmanager
def in_regime(name: str, model: torch.nn.Module) -> Iterator[Callable[..., object]]:
    """Hands out what runs in place of `model`: inputs and results, parameters and gradients are the model's.

    Distributed training is DistributedDataParallel over a group of one process, reducer and hooks included.
    """
    if name == "autocast":

        def cast(*inputs: object, **named: object) -> object:
            with torch.autocast("cpu", torch.bfloat16):
                return model(*inputs, **named)

        yield cast
    elif name == "checkpointing":
        yield lambda *inputs, **named: checkpoint(model, *inputs, use_reentrant=False, **named)
    elif name == "compiled code":
        yield torch.compile(model, backend="aot_eager")
    elif name == "distributed training":
        torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
        try:
            yield torch.nn.parallel.DistributedDataParallel(model)
        finally:
            destroy_group()
    else:
        raise ValueError(f"no regime {name!r}; there are {', '.join(REGIMES)}")
