"""Operands of eager operators: positions as in the operator's definition, and values as routines get them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from amanda import _core
from amanda.drivers.tensorflow import port
from amanda.drivers.tensorflow.view import attach, op_types

_OPAQUE = frozenset({tf.resource, tf.variant, tf.string})


class OperatorType(NamedTuple):
    name: str
    number: int
    inputs: tuple[str, ...]  # per position, the attribute with the length of its list; "" if it is no list
    outputs: tuple[str, ...]

    def grouped_inputs(self, operands: Any, attributes: Sequence[Any]) -> list[Any]:
        """One per position, of which some are lists. Empty if `operands` are not all that there are. `attributes`: keys
        and values in turn."""
        return _grouped(self.inputs, operands, attributes)

    def grouped_outputs(self, operands: Any, attributes: Sequence[Any]) -> list[Any]:
        return _grouped(self.outputs, operands, attributes)


_known: dict[str, OperatorType | None] = {}


def type_named(backend: _core.GraphBackend, name: str) -> OperatorType | None:
    """The type of an operator. None for a function, or for a node that only connects."""
    if name not in _known:
        definition = None if name in op_types.PLUMBING or name in op_types.CALLS else port.find_op_def(name)
        if definition is None:
            return None  # functions come and go
        _known[name] = OperatorType(
            name,
            op_types.intern_definition(backend, definition),
            tuple(argument.number_attr or argument.type_list_attr for argument in definition.input_arg),
            tuple(argument.number_attr or argument.type_list_attr for argument in definition.output_arg),
        )
    return _known[name]


def _grouped(positions: Sequence[str], operands: Any, attributes: Sequence[Any]) -> list[Any]:
    given = list(operands) if isinstance(operands, list | tuple) else []
    if any(positions):
        lengths = dict(zip(attributes[::2], attributes[1::2], strict=True))
        counts = [_count(lengths[attribute]) if attribute else 1 for attribute in positions]
        if len(given) != sum(counts):
            return []
        rest = iter(given)
        members = [[next(rest) for _ in range(count)] for count in counts]
        return [each if attribute else each[0] for attribute, each in zip(positions, members, strict=True)]
    return given if len(given) == len(positions) else []


def _count(length: Any) -> int:
    """`length`: the number of operands of one type, or the list of their types."""
    return len(length) if isinstance(length, list | tuple) else int(length)


def is_value(operand: Any) -> bool:
    """True if routines can get it as an array. Resources, variants and strings cannot be arrays."""
    return port.is_eager(operand) and operand.dtype not in _OPAQUE


def symbol_of(operand: Any) -> Any:
    """The operand that analyses are shown: the tensor, if routines will get its values."""
    if isinstance(operand, list):
        return [symbol_of(member) for member in operand]
    return operand if is_value(operand) else None


def array_of(operand: Any) -> Any:
    """The operand that routines get: the tensor's values, as a read-only view; for a list, the list of these."""
    if isinstance(operand, list):
        return [array_of(member) for member in operand]
    if not is_value(operand):
        return None
    array = np.asarray(port.array_of(operand)).view()
    array.flags.writeable = False
    return array


def address_of(operand: Any) -> int | None:
    """The address of the elements of an eager tensor, or of a variable's value; None if there are none."""
    if not is_value(operand):
        if not hasattr(operand, "handle"):
            return None
        with port.eagerly(), port.stop_recording():
            operand = tf.raw_ops.ReadVariableOp(resource=operand.handle, dtype=tf.as_dtype(operand.dtype))
    array = array_of(operand)
    return int(array.__array_interface__["data"][0]) if array.size else None


def is_recorded() -> bool:
    """True while a tape records what this thread computes."""
    return not port.no_tape_records()


def arrays_of(operands: Sequence[Any], needed: Callable[[int], bool]) -> list[Any]:
    """The arrays of the positions that are needed; None elsewhere."""
    return [array_of(operand) if needed(position) else None for position, operand in enumerate(operands)]


def describe(value: Any) -> dict[str, Any] | None:
    """A tensor at analysis, or what routines get in its place, for C++ tools."""
    if isinstance(value, np.ndarray):
        return {"dtype": value.dtype.name, "device": "cpu", "sizes": list(value.shape), "bytes": value.nbytes}
    return attach.describe(value)


def attribute(attributes: Sequence[Any], name: str) -> str | None:
    """One of `attributes`, names and values in turn, as text; None if it does not exist."""
    for key, value in zip(attributes[::2], attributes[1::2], strict=True):
        if _text(key) == name:
            return _text(value)
    return None


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
