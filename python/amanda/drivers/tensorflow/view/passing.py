"""Values that no operator which tools see makes: sums of gradients, what variables hold, and results of functions."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from amanda import _core
from amanda.drivers.tensorflow import port
from amanda.drivers.tensorflow.eager import operands as eager_operands
from amanda.drivers.tensorflow.view import variables

SUM, READ = "AddN", "ReadVariableOp"
WRITES = frozenset(
    {"AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp"}
    | {
        f"ResourceApply{name}"
        for name in ("GradientDescent", "Momentum", "KerasMomentum", "Adam", "RMSProp", "Adagrad")
    }
)


class Passed(NamedTuple):
    """An eager value that is made of others: a sum of gradients, or the value of a variable that was written."""

    kind: str  # "sum", "write"
    operator: str
    given: list[Any]  # arrays
    made: Callable[[], Any]  # the array


Listener = Callable[[Passed], object]
ReadListener = Callable[[Sequence[object], Sequence[Any], Sequence[Any]], object]
ResultListener = Callable[[str, Sequence[Any], Sequence[Any], bool], object]

_listeners: list[Listener] = []
_read_listeners: list[ReadListener] = []
_result_listeners: list[ResultListener] = []


def listen(listener: Listener) -> Callable[[], None]:
    """Calls the listener for those of eager code, while a scope is open. The result ends that."""
    _listeners.append(listener)
    return functools.partial(_listeners.remove, listener)


def listen_to_reads(listener: ReadListener) -> Callable[[], None]:
    """Calls `listener(keys, inputs, outputs)` when eager code reads a variable, or calls a function that is a graph, while
    a scope is open. The keys, as of `VariableValue`, are those of variables that it reads. The result ends that."""
    _read_listeners.append(listener)
    return functools.partial(_read_listeners.remove, listener)


def listen_to_results(listener: ResultListener) -> Callable[[], None]:
    """Calls `listener(operator, inputs, outputs, is_backward)` when an operator has run in eager code, or a function that
    eager code calls, after the routines of tools. The result ends that."""
    _result_listeners.append(listener)
    return functools.partial(_result_listeners.remove, listener)


def results_are_listened_to() -> bool:
    return bool(_result_listeners)


def note_results(operator: str | bytes, inputs: Any, outputs: Any, *, is_backward: bool) -> None:
    if not _core.is_enabled():
        return
    name = operator.decode() if isinstance(operator, bytes) else operator
    for listener in list(_result_listeners):
        listener(name, _listed(inputs), _listed(outputs), is_backward)


def _listed(operands: Any) -> Sequence[Any]:
    return operands if isinstance(operands, list | tuple) else [operands]


def reads_are_listened_to() -> bool:
    return bool(_read_listeners)


def note_read(inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
    keys = [variables.key_of(one) for one in inputs if one.dtype == tf.resource]
    for listener in list(_read_listeners):
        listener(keys, inputs, outputs)


def is_listened_to() -> bool:
    return bool(_listeners)


def note_sum(inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
    """Notes an operator that has added gradients up."""
    _tell(Passed("sum", SUM, _arrays(inputs), lambda: eager_operands.array_of(outputs[0])))


def note_write(operator: str, inputs: Sequence[Any]) -> None:
    """Notes an operator that has written to a variable, its first input."""
    _tell(Passed("write", operator, _arrays(inputs), lambda: _value_of(inputs[0], inputs[-1].dtype)))


def summands_of(symbol: Any) -> list[Any]:
    """The symbols of which a graph's value is the sum, as gradients are added up; none of another value."""
    if not isinstance(symbol, tf.Tensor) or port.is_eager(symbol) or symbol.op.type != SUM:
        return []
    return [summand for one in symbol.op.inputs for summand in summands_of(one) or [one]]


def _tell(passed: Passed) -> None:
    for listener in list(_listeners):
        listener(passed)


def _arrays(operands: Sequence[Any]) -> list[Any]:
    return [array for array in map(eager_operands.array_of, operands) if array is not None]


def _value_of(resource: Any, dtype: tf.DType) -> Any:
    with port.stop_recording():
        return eager_operands.array_of(tf.raw_ops.ReadVariableOp(resource=resource, dtype=dtype))
