"""The results of an operator for float64 copies of its inputs, to see which of two results is closer. Imports torch:
import it where an operator ran."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from .values import arrays_in

_WIDER = {
    **dict.fromkeys((torch.float32, torch.float16, torch.bfloat16), torch.float64),
    torch.complex64: torch.complex128,
}


def results(op: Callable[..., Any], inputs: Sequence[Any], written: Sequence[int]) -> list[torch.Tensor] | None:
    """Its results for wider copies of `inputs`, then the inputs at the positions `written`, which it changes.

    None if the operator has no float64 implementation, or draws random numbers.
    """
    with torch.random.fork_rng():
        first, second = (_run(op, inputs, written) for _ in range(2))
    if first is None or second is None or not all(map(torch.equal, first, second)):
        return None
    return first


def ulps(tensor: torch.Tensor, exact: torch.Tensor) -> float:
    """The largest error of an element, in units of the last place of its dtype. 0.5: it is rounded correctly."""
    if tensor.shape != exact.shape or not tensor.is_floating_point():
        return math.nan
    info, exact = torch.finfo(tensor.dtype), exact.cpu()
    _, exponent = torch.frexp(exact.abs().clamp(min=info.tiny))
    error = (tensor.cpu().double() - exact).abs() / (info.eps * torch.exp2(exponent.double() - 1))
    return error.nan_to_num(nan=0.0).max().item() if error.numel() else 0.0


def _run(op: Callable[..., Any], inputs: Sequence[Any], written: Sequence[int]) -> list[torch.Tensor] | None:
    wide = [_wider(value) for value in inputs]
    try:
        returned = op(*wide)
    except (RuntimeError, NotImplementedError, TypeError):
        return None
    return [*arrays_in((returned,)), *arrays_in([wide[i] for i in written])]


def _wider(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().to(_WIDER.get(value.dtype, value.dtype), copy=True)
    if isinstance(value, torch.dtype):
        return _WIDER.get(value, value)
    return [_wider(member) for member in value] if isinstance(value, (list, tuple)) else value
