"""Differentiates the results of a program, and leaves every `.grad` as it is."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from amanda.core import switches


def differentiate(result: Any) -> bool:
    """Runs the backward operators of the tensors in `result`. Returns False if no tensor requires a gradient."""
    with switches.disabled():
        roots = [tensor for tensor in _tensors(result) if tensor.grad_fn is not None]
        ones = [torch.ones_like(tensor) for tensor in roots]
        leaves = list(_leaves(roots))
    if not leaves:
        return False
    # The graph may go on to what the program was called with, which is not ours to free.
    torch.autograd.grad(roots, leaves, ones, retain_graph=True, allow_unused=True)
    return True


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for element in value.values():
            yield from _tensors(element)
    elif isinstance(value, list | tuple):
        for element in value:
            yield from _tensors(element)
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from _tensors(getattr(value, field.name))


def _leaves(roots: list[torch.Tensor]) -> Iterator[torch.Tensor]:
    """The leaves from which the tensors were computed."""
    waiting = [tensor.grad_fn for tensor in roots]
    seen = set(waiting)
    while waiting:
        node = waiting.pop()
        assert node is not None
        if node.name() == "torch::autograd::AccumulateGrad":
            yield node.variable
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                waiting.append(following)
