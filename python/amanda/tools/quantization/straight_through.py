"""Fake quantization under transformations of torch.func and in forward-mode differentiation.

PyTorch's operators have no forward derivative and no rule for vmap. Elsewhere they, or C++, do it.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from amanda.toolkit.torch import FUNCTIONALIZE, functorch_stack


@dataclasses.dataclass(frozen=True)
class Grid:
    """The grid to which values are rounded."""

    scale: torch.Tensor
    zero_point: torch.Tensor
    axis: int | None  # of the channels; None if there is one scale
    low: int
    high: int

    def rounded(self, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The value after quantization, and where it was in range."""
        limits, aten = (self.low, self.high), torch.ops.aten
        if self.axis is None:
            on = torch.ones(1, dtype=torch.int64, device=value.device)
            round_it = aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams
            result, inside = round_it(value, self.scale, self.zero_point, on, *limits)
        else:
            round_it = aten.fake_quantize_per_channel_affine_cachemask
            result, inside = round_it(value, self.scale, self.zero_point, self.axis, *limits)
        return result, inside

    def behind_batch(self) -> Grid:
        """For values with one dimension more, in front of the others."""
        return self if self.axis is None else dataclasses.replace(self, axis=self.axis + 1)


def rounded(value: torch.Tensor, grid: Grid) -> torch.Tensor:
    """The value after quantization. Gradients and tangents pass where it was in range."""
    found: torch.Tensor = _StraightThrough.apply(value, grid)[0]
    return found


def is_functionalizing() -> bool:
    """There PyTorch runs no `torch.autograd.Function`."""
    return any(one.key() == FUNCTIONALIZE for one in functorch_stack() or ())


class _StraightThrough(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(value: torch.Tensor, grid: Grid) -> tuple[torch.Tensor, torch.Tensor]:
        return grid.rounded(value)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: tuple[torch.Tensor, torch.Tensor]) -> None:
        _, inside = output
        ctx.mark_non_differentiable(inside)
        ctx.save_for_backward(inside)
        ctx.save_for_forward(inside)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor, _: Any) -> tuple[torch.Tensor, None]:
        return gradient * ctx.saved_tensors[0], None

    @staticmethod
    def jvp(ctx: Any, tangent: torch.Tensor | None, _: Any) -> tuple[torch.Tensor | None, None]:
        return None if tangent is None else tangent * ctx.saved_tensors[0], None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, None], value: torch.Tensor, grid: Grid) -> Any:
        assert in_dims[0] is not None
        return _StraightThrough.apply(value.movedim(in_dims[0], 0), grid.behind_batch()), (0, 0)
