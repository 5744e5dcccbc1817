"""How far two outcomes are apart."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import torch

from amanda.tools.diff import Tolerances


@dataclasses.dataclass(frozen=True)
class Distance:
    """Between a value of compiled code and that of the same graph run eagerly."""

    what: str  # "output 0"
    score: float  # the largest difference relative to the element and the tensor's mean together; inf: see max_abs
    dtype: str
    shape: tuple[int, ...]
    elements: int  # that differ by more than is tolerated
    max_abs: float | None  # if shapes are equal, and the same elements are finite
    max_rel: float | None
    note: str = ""


def largest(ours: Mapping[str, Any], theirs: Mapping[str, Any], tolerances: Tolerances) -> Distance | None:
    """The distance of the value that is furthest off; None if all agree within the tolerances."""
    found = [distance for name in theirs if (distance := _distance(name, ours.get(name), theirs[name], tolerances))]
    return max(found, key=lambda distance: distance.score, default=None)


def _distance(name: str, ours: Any, theirs: Any, tolerances: Tolerances) -> Distance | None:
    if ours is None or theirs is None:
        # A gradient that is missing in one run is zero there.
        present = theirs if ours is None else ours
        if present is None or not present.any():
            return None
        ours, theirs = (torch.zeros_like(present) if value is None else value for value in (ours, theirs))
    dtype, shape = str(theirs.dtype).removeprefix("torch."), tuple(theirs.shape)
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        note = f"{ours.dtype}{list(ours.shape)} instead of {theirs.dtype}{list(shape)}".replace("torch.", "")
        return Distance(name, math.inf, dtype, shape, theirs.numel(), None, None, note)
    is_equal = (ours == theirs) | (ours.isnan() & theirs.isnan())
    if bool(is_equal.all()):
        return None
    if not (theirs.is_floating_point() or theirs.is_complex()):
        return _of_integers(name, ours, theirs, tolerances, dtype)
    return _of_floats(name, ours, theirs, tolerances, dtype)


def _of_floats(name: str, ours: Any, theirs: Any, tolerances: Tolerances, dtype: str) -> Distance | None:
    wide = torch.complex128 if theirs.is_complex() else torch.float64
    a, b = ours.to(wide), theirs.to(wide)
    is_equal = (ours == theirs) | (ours.isnan() & theirs.isnan())
    lone = (ours.isfinite() != theirs.isfinite()) | (~ours.isfinite() & ~is_equal)
    finite = ours.isfinite() & theirs.isfinite()
    apart = torch.where(finite, (a - b).abs(), 0.0)
    size = torch.where(finite, b.abs(), 0.0)
    rtol, atol = tolerances.of([dtype])
    differs = lone | (apart > atol + rtol * size)
    shape = tuple(theirs.shape)
    count = int(differs.sum())
    if not count:
        return None
    if bool(lone.any()):
        note = _only(lone & theirs.isfinite(), "eager mode") or _only(lone & ours.isfinite(), "compiled code")
        return Distance(name, math.inf, dtype, shape, count, None, None, note)
    mean = size.sum() / max(int(finite.sum()), 1)
    relative = torch.where(apart > 0, apart / size, 0.0)
    score = torch.where(apart > 0, apart / (size + mean), 0.0).max()
    return Distance(name, float(score), dtype, shape, count, float(apart.max()), float(relative.max()))


def _only(lone: Any, where: str) -> str:
    count = int(lone.sum())
    return f"{count:,} element{'s are' if count > 1 else ' is'} finite in {where} only" if count else ""


def _of_integers(name: str, ours: Any, theirs: Any, tolerances: Tolerances, dtype: str) -> Distance | None:
    a, b = ours.to(torch.float64), theirs.to(torch.float64)
    rtol, atol = tolerances.of([dtype])
    apart = (a - b).abs()
    count = int((apart > atol + rtol * b.abs()).sum())
    return Distance(name, math.inf, dtype, tuple(theirs.shape), count, float(apart.max()), None) if count else None
