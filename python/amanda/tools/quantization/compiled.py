"""Operands of compiled functions: they are quantized in the compiled code, which calls their observers."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable
from typing import Any

import torch

from amanda.tools.quantization.observed import Observed

Routine = Callable[[torch.Tensor], torch.Tensor]

_operands: weakref.WeakValueDictionary[int, Observed] = weakref.WeakValueDictionary()
_numbers = itertools.count(1)


def can_quantize(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point() and not value.is_nested


def fixed(operand: Observed) -> Routine:
    """With the range as it is.

    Raises:
        amanda.Error: it has none.
    """
    scale, zero_point = operand.qparams("run the program with observe = True first")

    def quantize(value: torch.Tensor) -> torch.Tensor:
        return operand.rounded(value, scale, zero_point)

    return quantize


def observing(operand: Observed) -> Routine:
    # A tensor, which is an input of the compiled code: that may be stored, and run in another process.
    number = torch.tensor(next(_numbers))
    _operands[int(number)] = operand
    axis = operand.observer.ch_axis if operand.by_channel else -1

    def quantize(value: torch.Tensor) -> torch.Tensor:
        return operand.rounded(value, *_observe(value.detach(), number, axis))

    return quantize


@torch.library.custom_op("amanda_quantization::observe_v1", mutates_args=())  # type: ignore[untyped-decorator]
def _observe(value: torch.Tensor, number: torch.Tensor, axis: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Scale and zero point after the observer has seen the value. axis: of the channels; -1: there is one range."""
    operand = _operands[int(number)]
    operand.look_at(value)
    scale, zero_point = operand.qparams("")
    return scale.clone(), zero_point.clone()


@_observe.register_fake  # type: ignore[untyped-decorator]
def _(value: torch.Tensor, number: torch.Tensor, axis: int) -> tuple[torch.Tensor, torch.Tensor]:
    count = 1 if axis < 0 else value.shape[axis]
    return value.new_empty(count, dtype=torch.float32), value.new_empty(count, dtype=torch.int32)
