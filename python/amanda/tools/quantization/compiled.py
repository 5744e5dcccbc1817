"""Operands of compiled functions: they are quantized in the compiled code, which calls their observers."""

from __future__ import annotations

import dataclasses
import itertools
import weakref
from collections.abc import Callable
from typing import Any

import torch

from .observed import ADVICE, Observed

Routine = Callable[[torch.Tensor], torch.Tensor]


@dataclasses.dataclass(eq=False)
class Live:
    """An operand as its tool has it at each run: after a reset, it is another one."""

    operand: Callable[[], Observed]
    observes: Callable[[], bool]


_live: weakref.WeakValueDictionary[int, Live] = weakref.WeakValueDictionary()
_numbers = itertools.count(1)


def can_quantize(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point() and not value.is_nested


def fixed(operand: Observed, quantizes: torch.Tensor) -> Routine:
    """With the range as it is. quantizes: one bool, which compiled code reads in each run.

    Raises:
        amanda.Error: it has none.
    """
    scale, zero_point = operand.qparams(ADVICE)

    def quantize(value: torch.Tensor) -> torch.Tensor:
        return torch.where(quantizes, operand.rounded(value, scale, zero_point), value)

    return quantize


def observing(live: Live, quantizes: torch.Tensor) -> Routine:
    # A tensor, which is an input of the compiled code: that may be stored, and run in another process.
    number = torch.tensor(next(_numbers))
    _live[int(number)] = live
    first = live.operand()
    axis = first.observer.ch_axis if first.by_channel else -1

    def quantize(value: torch.Tensor, live: Live = live) -> torch.Tensor:  # keeps it alive
        rounded = first.rounded(value, *_observe(value.detach(), number, axis))
        return torch.where(quantizes, rounded, value)

    return quantize


@torch.library.custom_op("amanda_quantization::observe_v1", mutates_args=())  # type: ignore[untyped-decorator]
def _observe(value: torch.Tensor, number: torch.Tensor, axis: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Scale and zero point after the observer has seen the value. axis: of the channels; -1: there is one range."""
    live = _live[int(number)]
    operand = live.operand()
    if live.observes():
        operand.look_at(value)
    scale, zero_point = operand.qparams(ADVICE)
    return scale.clone(), zero_point.clone()


@_observe.register_fake  # type: ignore[untyped-decorator]
def _(value: torch.Tensor, number: torch.Tensor, axis: int) -> tuple[torch.Tensor, torch.Tensor]:
    count = 1 if axis < 0 else value.shape[axis]
    return value.new_empty(count, dtype=torch.float32), value.new_empty(count, dtype=torch.int32)
