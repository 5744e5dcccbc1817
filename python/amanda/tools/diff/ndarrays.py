"""Arrays of numpy, which TensorFlow's operands are in routines: an implementation of `amanda.tools.diff.values.Values`."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from amanda.toolkit.arrays import of_numpy

from .tolerances import Difference, Tolerances

_STORED = {
    *("float64", "float32", "float16", "bfloat16", "complex64", "bool", "float8_e4m3fn", "float8_e5m2"),
    *("int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8"),
}

Array = np.ndarray[Any, Any]


def dtype_of(array: Array) -> str:
    return str(array.dtype.name)


def shape_of(array: Array) -> Sequence[int] | None:
    return list(array.shape)


def number_in(array: Array) -> str | None:
    is_number = array.shape == () and array.dtype.name in ("float64", "float32", "int64", "int32")
    return str(array[()]) if is_number else None


def kept(array: Array) -> Array | None:
    return np.array(array, order="C") if array.dtype.name in _STORED else None


def data(array: Array, *, is_kept: bool) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def made(data: bytearray, dtype: str, shape: tuple[int, ...]) -> Array:
    if not hasattr(np, dtype):
        importlib.import_module("ml_dtypes")  # makes it known to numpy
    return np.frombuffer(data, np.dtype(dtype)).reshape(shape)


def memory(array: Array) -> int | None:
    return int(array.ctypes.data) if array.size else None


def sizes(array: Array) -> Array:
    return np.abs(array if of_numpy.is_complex(array) else array.astype(np.float64)).astype(np.float64).reshape(-1)


def elements(array: Array) -> Array:
    parts = of_numpy.as_reals(array) if of_numpy.is_complex(array) else array
    return parts.astype(np.float64).reshape(-1)


def is_equal(array: Array, reference: Array) -> bool:
    return array.dtype == reference.dtype and array.shape == reference.shape and bool(_same(array, reference).all())


def _same(array: Array, reference: Array) -> Array:
    """The mask of the equal elements of two arrays of one dtype."""
    if of_numpy.is_complex(array):
        parts = _same(of_numpy.as_reals(array), of_numpy.as_reals(reference))
        return np.asarray(parts.all(-1))
    if not of_numpy.is_floating(array):
        return np.asarray(array == reference)
    bits = of_numpy.as_integers(array) == of_numpy.as_integers(reference)
    same = bits | (np.isnan(array) & np.isnan(reference))
    return np.asarray(same)


def difference(array: Array, reference: Array, tolerances: Tolerances, dtypes: Sequence[str] = ()) -> Difference | None:
    dtype, other = array.dtype.name, reference.dtype.name
    if array.shape != reference.shape:
        note = f"shape {list(array.shape)} instead of {list(reference.shape)}"
        return Difference(dtype, array.shape, array.size, None, None, note)
    rtol, atol = tolerances.of({dtype, other, *dtypes})
    ours, theirs = (one.astype(_wide(array, reference)) for one in (array, reference))
    with np.errstate(all="ignore"):
        distance, scale = np.abs(ours - theirs).astype(np.float64), np.abs(theirs).astype(np.float64)
        same = np.asarray((ours == theirs) | (np.isnan(ours) & np.isnan(theirs)))
        if dtype == other:
            same = _same(array, reference)
        bad = ~(same | (distance <= atol + rtol * scale)) if rtol or atol else ~same
        if not bad.any():
            return None
        some = np.nan_to_num(distance[bad], nan=np.inf, posinf=np.inf)
        relative = np.nan_to_num(some / scale[bad], nan=0.0, posinf=np.inf)
    note = f"{dtype} instead of {other}" if dtype != other else ""
    return Difference(dtype, array.shape, int(bad.sum()), float(some.max()), float(relative.max()), note)


def healed(array: Array, reference: Array) -> Array:
    return reference.astype(array.dtype, copy=True)


def overwrite(array: Array, reference: Array) -> None:
    array[...] = reference


def _wide(array: Array, reference: Array) -> Any:
    """A dtype in which both can be subtracted."""
    if of_numpy.is_complex(array) or of_numpy.is_complex(reference):
        return np.complex128
    is_exact = array.dtype == reference.dtype and array.dtype.kind in "iub"
    return np.int64 if is_exact else np.float64
