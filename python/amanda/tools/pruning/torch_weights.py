"""Weights of PyTorch's operators, and the parameters that they are."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from amanda import Error, OpContext
from amanda import ops as amanda_ops
from amanda.toolkit.arrays import of_torch

from .parameter_view import ParameterView


@dataclasses.dataclass(frozen=True)
class Weight:
    position: int  # among the inputs
    element: int | None  # its index in the list there; None if it is no list
    dim: int  # of input channels
    value: torch.Tensor
    view: ParameterView | None  # None if it is computed, or no parameter

    def routine(self, edit: Callable[..., Any]) -> Callable[..., Any]:
        """For this input; `edit` gets the weight."""
        return edit if self.element is None else functools.partial(_edit_element, edit, self.element)


def _edit_element(edit: Callable[..., Any], element: int, values: Sequence[Any], **arguments: Any) -> list[Any]:
    edited = list(values)
    changed = edit(values[element], **arguments)
    edited[element] = values[element] if changed is None else changed
    return edited


def find(context: OpContext) -> Weight | None:
    """The operator's weight; None if it has none that can be pruned."""
    op, inputs, element = context.op, context.inputs, None
    if "weight" in op.input_names:
        position, dim = op.input_names.index("weight"), 0 if "transpose" in op.__name__ else 1
    elif op.__name__ in amanda_ops.factors:
        left, right = map(op.input_names.index, amanda_ops.factors[op.__name__])
        position, dim = (right, -2) if of_torch.is_parameter(inputs[right]) else (left, -1)
        if not of_torch.is_parameter(inputs[position]):
            return None
    elif op.name == "aten::einsum" and not op.overload:
        in_list = _find_in_einsum(*inputs[:2])
        if in_list is None:
            return None
        position, (element, dim) = 1, in_list
    else:
        raise Error(f"[pruning] which input of {op.name} is its weight is not known")
    weight: Any = inputs[position]
    names: Any = context.parameter_names[position]
    if element is not None:
        weight, names = weight[element], names[element]
    prunable = isinstance(weight, torch.Tensor) and weight.is_floating_point() and weight.dim() >= 2
    return Weight(position, element, dim, weight, ParameterView.of(weight, names)) if prunable else None


def _find_in_einsum(equation: str, operands: Sequence[torch.Tensor]) -> tuple[int, int] | None:
    """The last operand that is a parameter and is summed over, and its last dimension that another one has, too."""
    terms, _, result = equation.replace(" ", "").partition("->")
    each = terms.split(",")
    if "->" not in equation:  # the letters that occur once
        result = "".join(letter for letter in terms if letter.isalpha() and terms.count(letter) == 1)
    for i in reversed(range(len(operands))):
        if not of_torch.is_parameter(operands[i]):
            continue
        others = {letter for j, term in enumerate(each) if j != i for letter in term}
        before, dots, after = each[i].partition("...")
        places = {letter: at - len(after) for at, letter in enumerate(after)}
        places |= {letter: at - (operands[i].dim() if dots else len(before)) for at, letter in enumerate(before)}
        summed = [at for letter, at in places.items() if letter in others and letter not in result]
        if summed:
            return i, max(summed)
    return None
