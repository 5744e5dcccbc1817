"""Numbers and other constants: tensors that have the same value in each run."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from amanda.drivers.tensorflow import port


def number_of(tensor: Any) -> float | None:
    """The number that a tensor of a graph always is, or that an eager one is; None if it is no number, or not known."""
    if not isinstance(tensor, tf.Tensor) or tensor.shape.rank != 0:
        return None
    is_real = tensor.dtype.is_floating or tensor.dtype.is_integer
    value = tf.get_static_value(tensor) if is_real else None
    return None if value is None else float(value)


def numbers_of(tensor: Any) -> list[int] | None:
    """The same of a vector of whole numbers, such as axes."""
    if not isinstance(tensor, tf.Tensor) or tensor.shape.rank != 1 or not tensor.dtype.is_integer:
        return None
    value = tf.get_static_value(tensor)
    return None if value is None else [int(one) for one in value]


def sizes_of(tensor: Any) -> list[int | None] | None:
    """The sizes of a shape; None for one that is not known, or that is to be computed. None if nothing is known."""
    if not isinstance(tensor, tf.Tensor) or tensor.shape.rank != 1 or not tensor.dtype.is_integer:
        return None
    value = tf.get_static_value(tensor, partial=True)
    return None if value is None else [None if one is None or one < 0 else int(one) for one in value]


def is_constant(tensor: Any) -> bool:
    """True for a value that the program wrote into a graph."""
    return isinstance(tensor, tf.Tensor) and not port.is_eager(tensor) and tensor.op.type == "Const"
