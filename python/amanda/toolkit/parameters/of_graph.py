"""Variables among the operands of a graph's operators, as the driver of the graph knows them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from amanda.core.op_context import OpContext
from amanda.driver import registry
from amanda.toolkit.parameters.parameter import Parameter


def used(context: OpContext) -> tuple[list[Parameter], bool]:
    """The variables that an operator computes with, and whether it reads anything else. One that gets a variable alone
    computes another weight, or moves it."""
    found = [each for position in range(len(context.inputs)) for each in parameters(context, position)]
    values = [each for operand in context.inputs for each in _members(operand)]
    reads_data = any(registry.variable_of(each) is None and registry.is_array(each) for each in values)
    return (found if reads_data else []), reads_data


def parameters(context: OpContext, position: int, element: int | None = None) -> Iterator[Parameter]:
    """The variables in one operand, or in an element of a list. Single numbers are none: they are as a rule constants of
    a formula."""
    for i, symbol in enumerate(_members(context.inputs[position])):
        found = registry.variable_of(symbol) if element in (None, i) else None
        if found is not None and found.elements is not None and found.rank:
            yield Parameter(found.key, found.name, found.elements, found.rank < 2)


def _members(operand: Any) -> list[Any]:
    return list(operand) if isinstance(operand, (list, tuple)) else [operand]
