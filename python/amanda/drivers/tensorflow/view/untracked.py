"""Variables that a layer of Keras has as attributes, and that are not among its weights."""

from __future__ import annotations

from collections.abc import Iterator
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


def untracked() -> list[Untracked]:
    """Those of all layers of Keras that exist. Keras tracks its own variables, and no others."""
    found: dict[object, Untracked] = {}
    for layer in port.keras_layers():
        for attribute, variable in _attributes(layer):
            value = variables.value_of(variable) if variable.trainable and hasattr(variable, "handle") else None
            if value is not None:
                found.setdefault(value.key, Untracked(value.key, str(layer.name), attribute))
    return list(found.values())


def elements_of(value: VariableValue, most: int) -> Any:
    """The first elements of a variable, now, as an array. None if it is gone."""
    variable = None if value.variable is None else value.variable()
    if variable is None:
        return None
    with port.eagerly(), switches.own_work():
        return tf.reshape(variable.read_value(), [-1])[:most].numpy()


def _attributes(layer: Any) -> Iterator[tuple[str, tf.Variable]]:
    """Those of the layer itself, and in its lists, tuples and dictionaries."""
    for name, value in list(vars(layer).items()):
        members = value.items() if isinstance(value, dict) else enumerate(value) if _is_list(value) else ()
        for key, member in [(None, value), *members]:
            if isinstance(member, tf.Variable):
                yield (name if key is None else f"{name}[{key!r}]"), member


def _is_list(value: object) -> bool:
    return isinstance(value, list | tuple)
