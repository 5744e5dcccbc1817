"""Distance: how far a value of the file is from the reference's, and how far it may be."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .arrays import Array

HUGE = 1e30  # masks have -inf, or the lowest number of a dtype: the same for a softmax
_TOLERANCES = {"float64": 1e-5, "float32": 1e-5, "float16": 5e-3, "bfloat16": 4e-2}
QUANTIZED = 0.03
"""Relative errors that are tolerated. Those of faithful float32 exports are up to 1e-6. A rounding to float16 is off by up
to 5e-4, one to bfloat16 by 4e-3, and sums of products by some times that. Operators of faithful 8-bit files are off by
0.01 to 0.025."""


class Distance(NamedTuple):
    """The distance of a value from its reference."""

    error: float  # the norm of the difference, divided by the reference's; of integers, the share that differs
    max_abs: float | None  # None if shapes differ
    note: str = ""


def tolerance_of(dtypes: set[str], is_quantized: bool) -> float:
    """The coarsest dtype's. Integers must be equal."""
    found = max((_TOLERANCES[dtype] for dtype in dtypes if dtype in _TOLERANCES), default=0.0)
    return max(found, QUANTIZED) if is_quantized else found


def distance(value: Array, wanted: Array) -> Distance:
    """NaN and infinities are equal to their own kind."""
    if value.shape != wanted.shape:
        note = f"shape {list(value.shape)} instead of {list(wanted.shape)}"
        return Distance(float("inf"), None, note)
    if not value.size:
        return Distance(0.0, 0.0)
    ours, theirs = _wide(value), _wide(wanted)
    both_nan = np.isnan(ours) & np.isnan(theirs)
    difference: Any = np.where(both_nan, 0.0, ours - theirs)
    largest = float(np.abs(difference).max())
    if wanted.dtype.kind not in "fV":
        return Distance(float(np.count_nonzero(difference) / difference.size), largest)
    if np.isnan(difference).any():
        return Distance(float("inf"), float("inf"), f"{np.isnan(difference).sum():,} elements are NaN in one of them")
    finite = np.where(np.isnan(theirs) | (np.abs(theirs) >= HUGE), 0.0, theirs)
    scale = float(np.linalg.norm(finite.ravel())) or 1.0
    return Distance(float(np.linalg.norm(difference.ravel())) / scale, largest)


def _wide(array: Array) -> Array:
    return np.clip(array.astype(np.float64), -HUGE, HUGE)
