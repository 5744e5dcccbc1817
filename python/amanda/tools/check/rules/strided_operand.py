"""strided-operand."""

from __future__ import annotations

from typing import Any

from amanda import OpContext, ops

from ..rule import Rule, operands

LEAST = 4096  # elements


class StridedOperand(Rule):
    """A matrix product gets a large operand that has gaps between its elements on both of its last axes, or a convolution
    gets one that is neither contiguous nor in channels-last order. Each run then copies the operand."""

    name = "strided-operand"
    sentence = "a product copies an operand that is not contiguous"
    fix = "choose the layout where the tensor is made, or call contiguous() once, outside the loop"
    is_advice = True
    ops = (*ops.linear, *ops.matmul, *ops.convolution)
    bad = """
        wide = torch.randn(256, 64, 2)
        F.linear(wide[:, :, 0], torch.randn(8, 64))
    """
    good = """
        wide = torch.randn(2, 64, 256)
        F.linear(wide[0].T, torch.randn(8, 64))
    """

    def look(self, context: OpContext) -> None:
        is_convolution = context.op.__name__ in ops.convolution
        for name, operand in operands(context).items():
            if getattr(operand, "ndim", 0) > 1 and operand.numel() >= LEAST and _is_copied(operand, is_convolution):
                self.found_in(context, f"{name} has shape {tuple(operand.shape)} and strides {operand.stride()}")
                return


def _is_copied(operand: Any, is_convolution: bool) -> bool:
    import torch

    if str(operand.layout) != "torch.strided" or operand.is_contiguous():
        return False
    if not is_convolution:
        return 1 not in operand.stride()[-2:]
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(operand.ndim)
    return last is None or not operand.is_contiguous(memory_format=last)
