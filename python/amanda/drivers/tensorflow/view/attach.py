"""The backends: what the core knows of TensorFlow's graphs."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from amanda import _core
from amanda.drivers.tensorflow.version import VERSION
from amanda.drivers.tensorflow.view import variables


def _backend(regime: str) -> _core.GraphBackend:
    backend = _core.GraphBackend(
        f"tensorflow/{VERSION}/{regime}",
        backward="operators",
        can_replace=True,
        keeps_gradients=True,
        both_sides=True,
    )
    backend.describe(describe)
    backend.name_parameters(variables.name_of)
    return backend


def describe(value: Any) -> dict[str, Any] | None:
    """A symbol, for C++ tools."""
    if not isinstance(value, tf.Tensor):
        return None
    shape = value.shape
    count = shape.num_elements()
    dtype = value.dtype.base_dtype
    known = {"dtype": dtype.name, "device": "cpu"}
    if shape.rank is not None:
        known["sizes"] = shape.as_list()
    if count is not None and dtype.size:
        known["bytes"] = count * dtype.size
    return known


#: v1 graphs, which a Session runs.
GRAPH = _backend("graph")
#: The graphs of tf.function.
FUNCTION = _backend("function")
