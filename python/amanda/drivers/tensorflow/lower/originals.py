"""The operator that a replacement took the place of: it runs on arrays, in eager mode."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from amanda import _core
from amanda.drivers.tensorflow import port
from amanda.drivers.tensorflow.view import op_types


class Original:
    """Runs an operator as its node says. Keeps no graph alive."""

    def __init__(self, op: tf.Operation) -> None:
        self._type, self._name = op.type, op.name
        self._count = len(op.outputs)
        self._inputs = [tensor.dtype for tensor in op.inputs]
        self._outputs = op_types.outputs_of(op)
        self._attributes: tuple[Any, ...] | None = None
        self._node_def = op.node_def
        self._device = op.device

    def __call__(self, *inputs: Any) -> Any:
        """`inputs` and results by position; a list's is a list. Several results are a tuple."""
        if self._attributes is None:
            self._attributes = _attributes(self._node_def)
        flat = [member for value in inputs for member in (value if isinstance(value, (list, tuple)) else [value])]
        tensors = [np.asarray(value, dtype.as_numpy_dtype) for value, dtype in zip(flat, self._inputs, strict=True)]
        results = [np.asarray(tensor) for tensor in self._run(tensors)]
        found = tuple(_at(results, position) for position in self._outputs)
        return found[0] if len(found) == 1 else found

    def _run(self, tensors: Sequence[Any]) -> Sequence[Any]:
        try:
            return port.run_eagerly(self._type, list(tensors), self._attributes or (), self._count)
        except Exception as error:
            raise _core.Error(
                f"[tensorflow] the original of {op_types.NAMESPACE}::{self._type} ({self._name}) did not run on its own: "
                f"{error}"
            ) from error


def _at(results: list[Any], position: op_types.Operand) -> Any:
    if isinstance(position, int):
        return results[position]
    return [results[index] for _, index in op_types.members(position)]


def _attributes(node_def: Any) -> tuple[Any, ...]:
    """Names and values in turn, as eager mode takes them."""
    flat: list[Any] = []
    for name, value in node_def.attr.items():
        if not name.startswith("_"):
            flat += [name, _value(value)]
    return tuple(flat)


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "list":
        filled = [getattr(value.list, field.name) for field, _ in value.list.ListFields()]
        return [_shape(item) for item in filled[0]] if filled else []
    return _shape(getattr(value, kind)) if kind else None


def _shape(value: Any) -> Any:
    """Eager mode takes shapes as lists, of which None is unknown."""
    if type(value).__name__ != "TensorShapeProto":
        return value
    return None if value.unknown_rank else [size.size for size in value.dim]
