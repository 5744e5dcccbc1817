"""The results of a graph in float64, to see which of two other results is nearer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from .copies import copies
from .outcomes import Outcome, outcome

_WIDER = {
    **dict.fromkeys((torch.float32, torch.float16, torch.bfloat16), torch.float64),
    torch.complex64: torch.complex128,
}
_CASTS = ("half", "bfloat16", "float")  # methods of tensors


def in_float64(graph: fx.GraphModule, inputs: Sequence[Any], backward: bool) -> Outcome | None:
    """Its outcome for wider copies of the inputs, with casts to narrower dtypes left out. None if it has none."""
    wide = [_wider(value) for value in copies(inputs)]
    try:
        return outcome(_Wide(graph).run, wide, backward=backward)
    except (RuntimeError, NotImplementedError, TypeError):
        return None


def ulps(tensor: torch.Tensor, exact: torch.Tensor) -> float | None:
    """The largest error of an element, in units of the last place of its dtype. None if they cannot be compared."""
    if tensor.shape != exact.shape or not tensor.is_floating_point() or not tensor.numel():
        return None
    info = torch.finfo(tensor.dtype)
    _, exponent = torch.frexp(exact.abs().clamp(min=info.tiny))
    error = (tensor.double() - exact).abs() / (info.eps * torch.exp2(exponent.double() - 1))
    return float(error.nan_to_num(nan=0.0).max())


class _Wide(fx.Interpreter):  # type: ignore[misc]
    def call_method(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return super().call_method("double" if target in _CASTS else target, *_widened(args, kwargs))

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if "autocast" in getattr(target, "__name__", ""):
            return None
        return super().call_function(target, *_widened(args, kwargs))


def _widened(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    wider = {
        name: _WIDER.get(value, value) if isinstance(value, torch.dtype) else value for name, value in kwargs.items()
    }
    return tuple(_WIDER.get(value, value) if isinstance(value, torch.dtype) else value for value in args), wider


def _wider(value: Any) -> Any:
    if not isinstance(value, torch.Tensor) or value.dtype not in _WIDER:
        return value
    return value.detach().to(_WIDER[value.dtype]).requires_grad_(value.requires_grad)
