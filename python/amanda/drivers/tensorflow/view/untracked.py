"""Variables that a layer of Keras has as attributes, and that are not among its weights."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from amanda.core import switches
from amanda.driver.protocol import VariableValue
from amanda.drivers.tensorflow import port
from amanda.drivers.tensorflow.view import variables


class Untracked(NamedTuple):
    """A variable that `trainable_variables` of its layer does not have."""

    key: object  # as of `VariableValue`
    layer: str  # the name
    attribute: str  # "kernels[0]"
    trained: tuple[frozenset[object], ...]  # keys of `trainable_variables`, of the layer and of each that has it


def untracked() -> list[Untracked]:
    """Those of all layers of Keras that exist. Keras tracks its own variables, and no others."""
    found: dict[object, Untracked] = {}
    layers = port.keras_layers()
    for layer in layers:
        here = [(attribute, key) for attribute, one in _attributes(layer) for key in _keys([one])]
        trained = tuple(_trained_with(layer, layers)) if here else ()
        for attribute, key in here:
            found.setdefault(key, Untracked(key, str(layer.name), attribute, trained))
    return list(found.values())


def elements_of(value: VariableValue, most: int) -> Any:
    """The first elements of a variable, now, as an array. None if it is gone."""
    variable = None if value.variable is None else value.variable()
    if variable is None:
        return None
    with port.eagerly(), switches.own_work():
        return tf.reshape(variable.read_value(), [-1])[:most].numpy()


def layers_with(file: str, name: str, line: int) -> list[Any]:
    """The layers of Keras with a method of this name that a file has at this line."""

    def is_method(kind: type) -> bool:
        code = getattr(vars(kind).get(name), "__code__", None)
        return code is not None and code.co_filename == file and code.co_firstlineno <= line <= code.co_firstlineno + 9

    return [one for one in port.keras_layers() if any(map(is_method, type(one).__mro__))]


def _trained_with(layer: Any, layers: Sequence[Any]) -> Iterator[frozenset[object]]:
    for outer in layers:
        if any(one is layer for one in port.layers_of(outer)):
            yield frozenset(_keys(outer.trainable_variables))


def _keys(found: Iterable[Any]) -> list[object]:
    """Those of the variables that are trained."""
    values = [variables.value_of(one) for one in found if one.trainable and hasattr(one, "handle")]
    return [value.key for value in values if value is not None]


def _attributes(layer: Any) -> Iterator[tuple[str, tf.Variable]]:
    """Those of the layer itself, and in its lists, tuples and dictionaries."""
    for name, value in list(vars(layer).items()):
        if name.startswith("_self_"):
            continue  # TensorFlow's own table of the attributes
        members = value.items() if isinstance(value, dict) else enumerate(value) if _is_list(value) else ()
        for key, member in [(None, value), *members]:
            if isinstance(member, tf.Variable):
                yield (name if key is None else f"{name}[{key!r}]"), member


def _is_list(value: object) -> bool:
    return isinstance(value, list | tuple)
