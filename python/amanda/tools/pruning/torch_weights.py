"""Weights of PyTorch's operators, and the parameters that they are."""

from __future__ import annotations

import torch

from amanda import _core
from amanda import ops as amanda_ops
from amanda.op_context import OpContext
from amanda.tools._arrays import of_torch
from amanda.tools.pruning.parameter_view import ParameterView


def find(context: OpContext) -> tuple[int, int] | None:
    """The position of an operator's weight, and the weight's dimension of input channels; None if it has no weight."""
    op, inputs = context.op, context.inputs
    if "weight" in op.input_names:
        found = op.input_names.index("weight"), 0 if "transpose" in op.__name__ else 1
    elif op.__name__ in amanda_ops.factors:
        left, right = map(op.input_names.index, amanda_ops.factors[op.__name__])
        found = (right, -2) if of_torch.is_parameter(inputs[right]) else (left, -1)
        if not of_torch.is_parameter(inputs[found[0]]):
            return None
    else:
        raise _core.Error(f"[pruning] which input of {op.name} is its weight is not known")
    weight = inputs[found[0]]
    prunable = isinstance(weight, torch.Tensor) and weight.is_floating_point() and weight.dim() >= 2
    return found if prunable else None


def view_of(context: OpContext, position: int) -> ParameterView | None:
    """None if the weight is computed, or no parameter."""
    return ParameterView.of(context.inputs[position], context.parameter_names[position])
