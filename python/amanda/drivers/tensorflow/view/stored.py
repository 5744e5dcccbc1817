"""The memory of variables, how much each has and how long it lives, and eager tensors."""

from __future__ import annotations

import gc
import weakref
from typing import Any, NamedTuple

import tensorflow as tf

from amanda.drivers.tensorflow import port
from amanda.drivers.tensorflow.eager import operands
from amanda.drivers.tensorflow.view import variables


class Stored(NamedTuple):
    """A variable that exists."""

    key: object  # as of `VariableValue`
    name: str
    bytes: int
    is_trainable: bool
    is_eager: bool
    handle: int  # the id of its resource
    variable: weakref.ref[Any]
    lives: weakref.ref[Any]  # as long as the memory: what has it, or the graph


def stored() -> list[Stored]:
    """All variables, of eager code and of graphs. One of which the shape is not known is left out."""
    things = gc.get_objects()
    kind = port.keras_variable()
    names = {id(one.handle): one.path for one in things if _is(one, kind) and hasattr(one, "handle")}
    found: dict[object, Stored] = {}
    for variable in things:
        if _is(variable, tf.Variable) and (one := _stored(variable, names)) is not None:
            found.setdefault(one.key, one)
    return list(found.values())


def eager_tensors() -> list[Any]:
    """All that Python has, but for resources, variants and strings."""
    return [one for one in gc.get_objects() if _is(one, port.EagerTensor) and operands.is_value(one)]


def tracings() -> dict[object, tuple[str, int]]:
    """The functions that exist, by weak reference: the name, and how often it was traced."""
    found = [one for one in gc.get_objects() if _is(one, port.Function)]
    return {weakref.ref(one): (str(one.name), one.experimental_get_tracing_count()) for one in found}


def _stored(variable: Any, names: dict[int, str]) -> Stored | None:
    try:
        handle = variable.handle if hasattr(variable, "handle") else variable.op.outputs[0]
    except AttributeError:  # it is being made
        return None
    value = variables.value_of(variable) if hasattr(variable, "handle") else variables.variable_of(handle)
    if value is None or not variable.shape.is_fully_defined():
        return None
    bytes = variable.shape.num_elements() * variable.dtype.size
    graph = getattr(handle, "graph", None)
    return Stored(
        value.key,
        names.get(id(handle), value.name),
        bytes,
        bool(variable.trainable),
        graph is None,
        id(handle),
        weakref.ref(variable),
        weakref.ref(handle if graph is None else graph),
    )


def _is(thing: object, kind: type | None) -> bool:
    return kind is not None and issubclass(type(thing), kind)  # isinstance() may call the program's code
