"""Parameters among the operands of PyTorch's operators."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

from amanda.core.op_context import OpContext
from amanda.drivers.torch.identity import call_path
from amanda.toolkit.arrays import of_torch
from amanda.toolkit.optimizer_phase import in_optimizer
from amanda.toolkit.parameters.parameter import Parameter, in_parametrization
from amanda.toolkit.schemas import Sides

_keys: Any = WeakIdKeyDictionary()  # they outlive their parameters


def used(context: OpContext) -> tuple[list[Parameter], bool]:
    """The parameters that an operator that has run computes with, and whether it reads anything else.

    There are none if it moves, converts or updates parameters. There are also none if it reads nothing else and runs
    outside of modules, as a regularization term or a copy for a checkpoint does.
    """
    found = [(position, each) for position in range(len(context.inputs)) for each in parameters(context, position)]
    if not found or in_optimizer(sys._getframe()):
        return [], False
    sides, reads_data = Sides.of(context), _reads_data(context)
    is_moved = sides.is_view or (sides.may_be_view and _returns_operand(context))
    if is_moved or not (reads_data or call_path.running_modules()):
        return [], False
    names = context.op.input_names
    return [each for position, each in found if names[position] in sides.read], reads_data


def parameters(context: OpContext, position: int, element: int | None = None) -> Iterator[Parameter]:
    """The parameters in one operand, or in an element of a list; a view stands for its parameter."""
    value = context.inputs[position]
    for i, tensor in enumerate(value if isinstance(value, (list, tuple)) else [value]):
        if not isinstance(tensor, torch.Tensor) or not of_torch.is_parameter(tensor) or element not in (None, i):
            continue
        parameter = tensor if isinstance(tensor, torch.nn.Parameter) else tensor._base
        if isinstance(parameter, torch.nn.parameter.UninitializedTensorMixin) or parameter.is_nested:
            continue
        names: Any = context.parameter_names[position]
        name = (names[i] if isinstance(names, tuple) else names) or "a parameter without a name"
        elements, is_vector = math.prod(parameter.shape), parameter.dim() < 2
        yield Parameter(_keys.setdefault(parameter, object()), name, elements, is_vector)


def _reads_data(context: OpContext) -> bool:
    """False for an operator that computes weights: of parameters and numbers alone, or in a parametrization, which may
    also read its buffers."""
    if in_parametrization(context.module_path):
        return False
    values = [each for value in context.inputs for each in (value if isinstance(value, (list, tuple)) else [value])]
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    return not all(of_torch.is_parameter(tensor) or of_torch.is_number(tensor) for tensor in tensors)


def _returns_operand(context: OpContext) -> bool:
    """True if the operator returned an operand, as `to` does if there is nothing to convert."""
    values = [value for value in context.inputs if isinstance(value, torch.Tensor)]
    owners = {id(value if value._base is None else value._base) for value in values}
    outputs = [output for output in context.outputs if isinstance(output, torch.Tensor)]
    return any(id(output if output._base is None else output._base) in owners for output in outputs)
