"""Operator types and positions, from TensorFlow's definitions of operators."""

from __future__ import annotations

from typing import Any, TypeAlias

import tensorflow as tf

from amanda import _core
from amanda.drivers.tensorflow import port

#: The place of a position's value in `op.inputs` or `op.outputs`: an index, or the indices of a list's members. None
#: means that the value, or the member, does not exist.
Operand: TypeAlias = "int | tuple[int | None, ...] | None"

NAMESPACE = "tensorflow"

# These operators connect, name or hold values, and compute none.
_HOLDS = {"Const", "Placeholder", "PlaceholderV2", "PlaceholderWithDefault", "FakeParam", "_Arg", "_Retval"}
_VARIABLES = {"VarHandleOp", "VariableV2", "Variable", "ReadVariableOp"}
FRAMES = {"Enter", "Exit", "Merge", "Switch", "NextIteration", "LoopCond"}
FRAMES |= {f"Ref{name}" for name in FRAMES}
_STACKS = {"StackV2", "StackPushV2", "StackPopV2", "StackCloseV2"}
PLUMBING = _HOLDS | _VARIABLES | FRAMES | _STACKS | {"NoOp", "ControlTrigger", "AmandaTap"}
#: Nodes that run functions, which have operators of their own.
_CALLS = {"If", "While", "Case", "PartitionedCall"}
CALLS = _CALLS | {f"Stateless{name}" for name in _CALLS} | {"StatefulPartitionedCall", "SymbolicGradient"}
IDENTITIES = {"Identity", "IdentityN"}
# An identity after one of these only reads or passes on its value.
_PASSED_ON = _VARIABLES | {"Switch", "RefSwitch", "Merge", "RefMerge", "Exit", "RefExit"}

# Their only input is a shape, which edits cannot change; copies of them would draw other numbers.
_RANDOM = {"RandomUniform", "RandomUniformInt", "RandomStandardNormal", "TruncatedNormal"}

_types: dict[tuple[str, str], int] = {}


def intern(backend: _core.GraphBackend, op: tf.Operation) -> int:
    """The number of the operator's type."""
    known = _types.get((backend.name_space, op.type))
    return intern_definition(backend, definition_of(op)) if known is None else known


def intern_definition(backend: _core.GraphBackend, definition: Any) -> int:
    """The number of the type that an OpDef defines."""
    key = (backend.name_space, definition.name)
    known = _types.get(key)
    if known is None:
        known = _types[key] = backend.intern(
            NAMESPACE,
            definition.name,
            inputs=[argument.name for argument in definition.input_arg],
            outputs=[argument.name for argument in definition.output_arg],
            schema=_schema(definition),
        )
    return known


def definition_of(op: tf.Operation) -> Any:
    """The OpDef; of a call by name, that of its function."""
    return port.find_op_def(op.type) or op.op_def


def inputs_of(op: tf.Operation) -> tuple[Operand, ...]:
    """The positions of the operator's inputs: those of its definition. A list is one position."""
    return _operands(op, definition_of(op).input_arg)


def outputs_of(op: tf.Operation) -> tuple[Operand, ...]:
    return _operands(op, definition_of(op).output_arg)


def _operands(op: tf.Operation, arguments: Any) -> tuple[Operand, ...]:
    operands: list[Operand] = []
    start = 0
    for argument in arguments:
        if argument.number_attr:
            count = op.get_attr(argument.number_attr)
        elif argument.type_list_attr:
            count = len(op.get_attr(argument.type_list_attr))
        else:
            operands.append(start)
            start += 1
            continue
        operands.append(tuple(range(start, start + count)))
        start += count
    return tuple(operands)


def members(operand: Operand) -> list[tuple[int, int]]:
    """(member, index) of what is there; the member of a position that is no list is -1."""
    if operand is None:
        return []
    if isinstance(operand, int):
        return [(-1, operand)]
    return [(member, index) for member, index in enumerate(operand) if index is not None]


def is_value(tensor: tf.Tensor) -> bool:
    """True if routines can get it as an array. They cannot get handles, strings and v1 variables themselves."""
    return tensor.dtype not in (tf.resource, tf.variant, tf.string) and not port.is_reference(tensor.dtype)


def computes(op: tf.Operation) -> bool:
    """True if the node is an operator, judging by this node alone. `links` distinguishes sums of gradients."""
    if op.type in PLUMBING or op.type in CALLS:
        return False
    return op.type not in IDENTITIES or not _only_passes_on(op)


def draws(op: tf.Operation) -> bool:
    """True if it returns random numbers of a stream of its own, in a shape that is its input."""
    return op.type in _RANDOM


def must_be_constant(op: tf.Operation, operand: Operand) -> bool:
    """True if the operand is a scalar that stands for a shape. TensorFlow must know its value when it builds the
    graph."""
    names = [argument.name for argument in definition_of(op).input_arg]
    return operand in [at for at, name in zip(inputs_of(op), names, strict=True) if name == "element_shape"] and all(
        op.inputs[index].shape.rank == 0 for _, index in members(operand)
    )


def has_effects(op: tf.Operation) -> bool:
    """True if it changes something, so that it must not run twice."""
    return definition_of(op).is_stateful and op.type not in _VARIABLES and not draws(op)


def is_identity(op: tf.Operation) -> bool:
    return op.type in IDENTITIES


def _only_passes_on(op: tf.Operation) -> bool:
    source = op.inputs[0]
    if source.op.type in _PASSED_ON or source.op.type in CALLS or port.is_reference(source.dtype):
        return True
    users = [user for output in op.outputs for user in output.consumers()]
    if not users:
        return isinstance(op.graph, port.FuncGraph)  # what a function returns
    return source.dtype == tf.bool and all(user.type == "Switch" for user in users)


def _schema(definition: Any) -> str:
    def side(arguments: Any) -> str:
        return ", ".join(argument.name for argument in arguments)

    return f"{definition.name}({side(definition.input_arg)}) -> ({side(definition.output_arg)})"
