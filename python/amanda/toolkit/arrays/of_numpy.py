"""Arrays of numpy, which TensorFlow's operands are in routines: an implementation of `amanda.toolkit.arrays.Arrays`.

bfloat16 and the types of 8 bits and less come from ml_dtypes. numpy knows them by name only.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

xp: Any = np

# ---- reading ---------------------------------------------------------------------------------------------------------


def quietly() -> contextlib.AbstractContextManager[Any]:
    return np.errstate(all="ignore")


def why_unreadable(array: Array) -> str | None:
    return "objects" if array.dtype.kind in "OSUT" else None


def is_symbolic(array: Array) -> bool:
    return False


def plain(array: Array) -> Array:
    return array


def is_transformed(array: Any) -> bool:
    return False


def untransformed() -> contextlib.AbstractContextManager[Any]:
    return contextlib.nullcontext()


def detached(array: Array) -> Array:
    return array


def nbytes(array: Array) -> int:
    return array.nbytes


def is_floating(array: Array) -> bool:
    return bool(array.dtype.name.startswith(("float", "bfloat")))


def is_complex(array: Array) -> bool:
    return bool(array.dtype.kind == "c")


def cast(array: Array, dtype: Any) -> Array:
    return array.astype(dtype, copy=False)


def zeros(array: Array, shape: Sequence[int]) -> Array:
    return np.zeros(shape, array.dtype)


def copied(array: Array, device: Any = None, dtype: Any = None) -> Array:
    return array.astype(array.dtype if dtype is None else dtype, copy=True)


def like(array: Array, values: Sequence[float]) -> Array:
    return np.array(values, array.dtype)


# ---- numbers of whole arrays -----------------------------------------------------------------------------------------


def extremes(array: Array) -> tuple[float, float]:
    return float(array.min()), float(array.max())


def mean_and_variance(array: Array) -> tuple[float, float]:
    return float(array.mean()), float(array.var())


def norm(array: Array) -> float:
    return float(np.linalg.norm(cast(array, np.complex128 if is_complex(array) else np.float64).reshape(-1)))


# ---- masks -----------------------------------------------------------------------------------------------------------


def lasting() -> contextlib.AbstractContextManager[Any]:
    return contextlib.nullcontext()


def matching(array: Array, other: Array) -> Array:
    return array.astype(other.dtype, copy=False)


def filled_like(array: Array, values: Array) -> Array:
    made = np.empty_like(array)
    made[...] = values
    return made


def without_smallest(array: Array, count: int) -> Array:
    values = array.reshape(-1)
    mask = np.ones_like(values)
    if count:
        # numpy cannot partition the types of ml_dtypes.
        exact = values.astype(np.float32) if values.itemsize < 4 else values
        mask[np.argpartition(exact, count - 1)[:count]] = 0
    return mask.reshape(array.shape)


# ---- bits ------------------------------------------------------------------------------------------------------------


def copy(array: Array) -> Array:
    return array.copy()


def as_reals(array: Array) -> Array:
    return array.reshape(*array.shape, 1).view(array.real.dtype) if is_complex(array) else array


def as_integers(array: Array) -> Array:
    return array.view(f"i{array.dtype.itemsize}")


def numbers(array: Array) -> list[Any]:
    if array.dtype.kind not in "biufc":  # of ml_dtypes
        array = array.astype(np.float64)
    return list(array.tolist())


def take(array: Array, positions: list[int]) -> Array:
    return array.take(positions)


def put(array: Array, positions: list[int], elements: Array) -> None:
    array.put(positions, elements)


# ---- random numbers --------------------------------------------------------------------------------------------------


def generator(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def integers(generator: np.random.Generator, below: int, count: int) -> list[int]:
    return [*map(int, generator.integers(below, size=count))]


def distinct(generator: np.random.Generator, below: int, count: int) -> list[int]:
    return [*map(int, generator.permutation(below)[:count])]


def uniform(generator: np.random.Generator, count: int) -> Array:
    return generator.random(count)


def binomial(generator: np.random.Generator, count: int, rate: float) -> int:
    return int(generator.binomial(count, rate))
