"""What modules and optimizers hold. Imports torch: import it where an operator has run."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from amanda.tools.memory.rows import Kind


class Owned(NamedTuple):
    pointer: int  # of the memory
    kind: Kind
    of: int  # the memory of the parameter that it belongs to, or its own
    what: str  # "exp_avg" of an optimizer; "" where the name of the parameter says all


class Watch:
    """Calls `note` with what optimizers hold, around each of their steps, until `remove`."""

    def __init__(self, note: Any) -> None:
        self._note = note
        self._hooks = [
            register_optimizer_step_pre_hook(lambda optimizer, args, kwargs: note(gradients(optimizer))),
            register_optimizer_step_post_hook(lambda optimizer, args, kwargs: note(states(optimizer))),
        ]

    def remove(self) -> None:
        for hook in self._hooks:
            hook.remove()


def gradients(optimizer: Any) -> Iterator[Owned]:
    """The parameters of an optimizer, and their gradients."""
    for parameter in _parameters(optimizer):
        at = pointer(parameter)
        yield Owned(at, "parameter", at, "")
        if parameter.grad is not None:
            yield Owned(pointer(parameter.grad), "gradient", at, "")


def states(optimizer: Any) -> Iterator[Owned]:
    """The tensors that it keeps for each parameter."""
    name = type(optimizer).__name__
    for parameter in _parameters(optimizer):
        for key, value in optimizer.state.get(parameter, {}).items():
            if isinstance(value, torch.Tensor):
                yield Owned(pointer(value), "optimizer state", pointer(parameter), f"{key} of {name}")


def modules(given: torch.nn.Module | None) -> list[tuple[str, Owned]]:
    """The names of the parameters, gradients and buffers of a model, or of all models that exist."""
    found: list[tuple[str, Owned]] = []
    for root in _roots() if given is None else [given]:
        for name, parameter in root.named_parameters():
            at = pointer(parameter)
            found.append((name, Owned(at, "parameter", at, "")))
            if parameter.grad is not None:
                found.append((name, Owned(pointer(parameter.grad), "gradient", at, "")))
        for name, buffer in root.named_buffers():
            found.append((name, Owned(pointer(buffer), "buffer", pointer(buffer), "")))
    return found


def pointer(tensor: torch.Tensor) -> int:
    """The memory of its storage; 0: it has none."""
    try:
        return int(tensor.untyped_storage().data_ptr())
    except (RuntimeError, NotImplementedError, ValueError):  # sparse, of a wrapper, not initialized yet
        return 0


def _parameters(optimizer: Any) -> Iterable[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _roots() -> list[torch.nn.Module]:
    """Modules that are in no other."""
    objects = gc.get_objects()
    modules = [item for item in objects if issubclass(type(item), torch.nn.Module)]  # __class__ may run code
    known = [module for module in modules if "_modules" in vars(module)]  # others are still in their __init__
    inner = {id(child) for module in known for child in module.children()}
    return [module for module in known if id(module) not in inner]
