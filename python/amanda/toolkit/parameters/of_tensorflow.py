"""Variables among the operands of TensorFlow's operators, in graphs."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

from amanda.core.op_context import OpContext
from amanda.toolkit.parameters.parameter import Parameter

_LOOKUPS = {"ResourceGather", "ResourceGatherNd"}  # operators that read a variable themselves
_NOT_READ = {"Shape", "ShapeN", "Size", "Rank", "StopGradient", "PreventGradient", "Assert"}

_WRITES = re.compile("Assign|Apply|SparseApply|ResourceApply|Scatter|IsVariableInitialized")
_OF_OPTIMIZERS = re.compile(
    r"[/\\\\](keras|tf_keras|tensorflow)[/\\\\].*optimizer"
)  # files of both Keras and TensorFlow 1


def used(context: OpContext) -> tuple[list[Parameter], bool]:
    """The parameters that an operator computes with, and whether it reads anything else.

    There are none if it moves or converts its operand, or writes to it, or if an optimizer made it, as for weight decay.
    """
    from amanda.drivers.tensorflow.view import variables

    if context.op.__name__ in variables.MOVES | _NOT_READ or _WRITES.match(context.op.__name__):
        return [], False
    if any(variables.variable_of(output) is not None for output in context.outputs):
        return [], False  # a slice of all elements
    found = [each for position in range(len(context.inputs)) for each in parameters(context, position)]
    return ([], False) if found and in_optimizer(context) else (found, True)


def in_optimizer(context: OpContext) -> bool:
    """True for an operator of a graph that an optimizer made."""
    outputs = [
        each for output in context.outputs for each in (output if isinstance(output, list | tuple) else [output])
    ]
    made = next((op for output in outputs if (op := getattr(output, "op", None)) is not None), None)
    return made is not None and any(_OF_OPTIMIZERS.search(frame.filename) for frame in made.traceback)


def parameters(context: OpContext, position: int, element: int | None = None) -> Iterator[Parameter]:
    """The trainable variables in one operand, or in an element of a list."""
    from amanda.drivers.tensorflow.view import variables

    value: Any = context.inputs[position]
    for i, symbol in enumerate(value if isinstance(value, (list, tuple)) else [value]):
        if element not in (None, i):
            continue
        found = variables.variable_of(symbol)
        if found is None and context.op.__name__ in _LOOKUPS:
            found = variables.variable_behind(symbol)
        variable = None if found is None or found.variable is None else found.variable()
        if found is None or (variable is not None and not variable.trainable):
            continue
        shape = (symbol if variable is None else variable).shape
        if shape.rank is not None and shape.is_fully_defined():
            yield Parameter(found.key, found.name, math.prod(shape.as_list()), shape.rank < 2)
