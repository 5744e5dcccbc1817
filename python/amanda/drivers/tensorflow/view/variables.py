"""Variables: which of them a symbol is the value of."""

from __future__ import annotations

import itertools
import weakref
from typing import Any

import tensorflow as tf

from amanda.core import fork
from amanda.driver.protocol import VariableValue

_SAME = frozenset({"Identity", "RefIdentity", "Enter", "RefEnter", "Switch", "RefSwitch"})
_SAME_ELEMENTS = _SAME | {"Cast", "Reshape", "ExpandDims", "Squeeze"}
_ALL_ELEMENTS = _SAME_ELEMENTS | {"Transpose"}

MOVES = _ALL_ELEMENTS | {"ReadVariableOp"}
"""Operators that compute nothing: their result is the value of the variable that they get."""


def variable_of(symbol: Any) -> VariableValue | None:
    """The variable whose value a symbol is, perhaps in another shape or dtype. None if it is computed, or no
    variable's."""
    in_order = True
    while isinstance(symbol, tf.Tensor) and hasattr(symbol, "graph"):
        op = symbol.op
        if op.type == "ReadVariableOp":
            return _of_resource(op.inputs[0], in_order)
        if op.type in ("VariableV2", "Variable"):
            return VariableValue((_numbers.of(op.graph), op.name), op.name, None, in_order)
        if op.type in _ALL_ELEMENTS or _takes_all(op):
            in_order = in_order and op.type != "Transpose"
            symbol = op.inputs[0]
        else:
            symbol = _captured(symbol)
    return None


def _takes_all(op: Any) -> bool:
    """True for a slice that only adds dimensions or removes them, as `weight[None]`."""
    if op.type != "StridedSlice":
        return False
    given, taken, strides = op.inputs[0].shape, op.outputs[0].shape, tf.get_static_value(op.inputs[3])
    return bool(
        strides is not None
        and (strides == 1).all()
        and given.is_fully_defined()
        and taken.is_fully_defined()
        and given.num_elements() == taken.num_elements()
    )


def variable_behind(resource: Any) -> VariableValue | None:
    """The variable of a symbol that is its resource, as operators get it that read the variable themselves."""
    return _of_resource(resource, True) if isinstance(resource, tf.Tensor) and hasattr(resource, "graph") else None


def value_key(symbol: Any) -> object | None:
    """The same for all symbols of a graph that have one value: an identity, or a capture of a function, has that of its
    operand. None outside of graphs."""
    found = None
    while isinstance(symbol, tf.Tensor) and hasattr(symbol, "graph"):
        found = symbol
        symbol = symbol.op.inputs[0] if symbol.op.type in _SAME else _captured(symbol)
    return None if found is None else (_numbers.of(found.graph), found.name)


def value_of(variable: Any) -> VariableValue | None:
    """The value of a variable of the program, tf.Variable or Keras'."""
    handle = variable.handle
    if hasattr(handle, "graph"):
        return variable_behind(handle)
    name = getattr(variable, "path", variable.name)
    return VariableValue(_numbers.of(handle), name.partition(":")[0], weakref.ref(variable), True)


def key_of(resource: Any) -> object:
    """The key of the variable that an eager resource is."""
    return _numbers.of(resource)


def name_of(symbol: Any) -> str | None:
    """For `GraphBackend.name_parameters`."""
    found = variable_of(symbol)
    return None if found is None else found.name


def _of_resource(resource: Any, in_order: bool) -> VariableValue | None:
    inner, graphs = resource, []
    while isinstance(resource, tf.Tensor) and hasattr(resource, "graph"):
        op = resource.op
        if op.type == "VarHandleOp":
            return VariableValue((_numbers.of(op.graph), op.name), op.name, None, in_order)
        graphs.append(op.graph)
        resource = op.inputs[0] if op.type in _SAME else _captured(resource)
    if resource is None:
        return None
    for graph in graphs:
        for variable in _variables(graph):
            if variable.handle is resource:
                return VariableValue(
                    _numbers.of(resource), variable.name.partition(":")[0], weakref.ref(variable), in_order
                )
    return VariableValue(_numbers.of(resource), inner.op.name.removesuffix("/resource"), None, in_order)


def _captured(symbol: Any) -> Any:
    """The value outside of a function's graph that this placeholder stands for; None if it is no capture."""
    if symbol.op.type != "Placeholder":
        return None
    for outer, inner in getattr(symbol.graph, "captures", ()):
        if inner is symbol:
            return outer
    return None


def _variables(graph: Any) -> list[Any]:
    try:
        return list(graph.variables)
    except (AttributeError, AssertionError):  # not of a function; or one of its variables no longer exists
        return []


class _Numbers:
    """A number for each object, which no later object gets."""

    def __init__(self) -> None:
        self._next = itertools.count(1)
        self._known: dict[int, tuple[weakref.ref[Any], int]] = {}
        self._lock = fork.rlock()

    def of(self, value: Any) -> int:
        with self._lock:
            found = self._known.get(id(value))
            if found is None or found[0]() is not value:
                found = self._known[id(value)] = weakref.ref(value), next(self._next)
            return found[1]


_numbers = _Numbers()
