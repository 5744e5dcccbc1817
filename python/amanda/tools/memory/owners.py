"""The tensors that modules and optimizers hold. Imports torch: import it where an operator has run."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from amanda.toolkit.torch import held, named_parts, outermost_modules, parameter_name

from .rows import Kind


class Owned(NamedTuple):
    tensor: torch.Tensor
    kind: Kind
    name: str  # of the parameter that it belongs to, or of the buffer; "" if it has none
    what: str  # "exp_avg" of an optimizer; "" where the name says all


class Watch:
    """Calls `note` with the tensors that optimizers hold, around each of their steps, and `on_step` after it, until
    `remove`."""

    def __init__(self, note: Callable[[Iterator[Owned]], None], on_step: Callable[[Any], None]) -> None:
        self._names: dict[int, tuple[weakref.ref[torch.Tensor], str]] = {}  # by the parameter's address
        self._hooks = [
            register_optimizer_step_pre_hook(lambda optimizer, args, kwargs: note(self._parameters_of(optimizer))),
            register_optimizer_step_post_hook(lambda optimizer, args, kwargs: note(self._states_of(optimizer))),
            register_optimizer_step_post_hook(lambda optimizer, args, kwargs: on_step(optimizer)),
        ]

    def remove(self) -> None:
        for hook in self._hooks:
            hook.remove()

    def _parameters_of(self, optimizer: Any) -> Iterator[Owned]:
        for parameter in _parameters(optimizer):
            yield from _with_gradient(parameter, self._name_of(parameter))

    def _states_of(self, optimizer: Any) -> Iterator[Owned]:
        """The tensors that it keeps for each parameter, also in lists and dicts."""
        states = getattr(optimizer, "state", None)
        if not isinstance(states, Mapping):
            return
        for parameter in _parameters(optimizer):
            state, name = states.get(parameter), self._name_of(parameter)
            for key, value in state.items() if isinstance(state, Mapping) else [("state", state)]:
                for tensor in _tensors(value):
                    yield Owned(tensor, "optimizer state", name, f"{key} of {type(optimizer).__name__}")

    def _name_of(self, parameter: torch.Tensor) -> str:
        known, name = self._names.get(id(parameter), (None, ""))
        if not name or known is None or known() is not parameter:
            name = parameter_name(parameter)
            self._names[id(parameter)] = weakref.ref(parameter), name
        return name


def modules(given: torch.nn.Module | None) -> Iterator[Owned]:
    """The parameters, gradients and buffers of a model, or of all models that exist."""
    for root in outermost_modules() if given is None else [given]:
        for path, module in named_parts(root):
            prefix = f"{path}." if path else ""
            for name, parameter in held(module, "_parameters"):
                yield from _with_gradient(parameter, prefix + name)
            for name, buffer in held(module, "_buffers"):
                yield Owned(buffer, "buffer", prefix + name, "")


def tensors() -> list[torch.Tensor]:
    """All tensors that Python knows."""
    return [thing for thing in gc.get_objects() if issubclass(type(thing), torch.Tensor)]


def _with_gradient(parameter: torch.Tensor, name: str) -> Iterator[Owned]:
    yield Owned(parameter, "parameter", name, "")
    if parameter.grad is not None:
        yield Owned(parameter.grad, "gradient", name, "")


def _parameters(optimizer: Any) -> Iterator[torch.Tensor]:
    for group in optimizer.param_groups:
        yield from group["params"]


def _tensors(value: object) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _tensors(each)
    elif isinstance(value, Mapping):
        yield from _tensors(list(value.values()))
