"""Histograms of the gradients and the updates of parameters."""

from __future__ import annotations

import array
import dataclasses
from typing import Any, NamedTuple

from amanda.toolkit import Arrays

LOWEST, HIGHEST = -64, 128  # exponents of magnitudes, of which each power of two is four bins
_BINS = 4 * (HIGHEST - LOWEST)  # of each sign
_POSITIVE = [2.0**exponent * quarter for exponent in range(LOWEST, HIGHEST) for quarter in (1, 1.25, 1.5, 1.75)]
_POSITIVE.append(2.0**HIGHEST)
EDGES = [*(-edge for edge in reversed(_POSITIVE)), *_POSITIVE]


class Histogram(NamedTuple):
    """How many elements of a parameter's gradient, or of its update, have which values, in one step."""

    name: str  #: of the parameter
    quantity: str  #: "gradients", as optimizers get them; or "updates"
    edges: tuple[float, ...]  #: of the bins, ascending: one more than there are bins
    counts: tuple[int, ...]  #: of each bin; the first and the last are not empty
    nonfinite: int  #: elements that are in no bin: NaN, infinite, or 2^128 and more
    min: float  #: of the elements in bins; 0 if there are none
    max: float
    sum: float
    sum_squares: float


@dataclasses.dataclass
class Counted:
    """The counted elements of some tensors."""

    bins: array.array[int] = dataclasses.field(default_factory=lambda: array.array("q", bytes(8 * (2 * _BINS + 1))))
    nonfinite: int = 0
    lowest: float = 0.0
    highest: float = 0.0
    total: float = 0.0
    squares: float = 0.0

    def add(self, other: Counted) -> None:
        had = any(self.bins)
        self.lowest = min(self.lowest, other.lowest) if had else other.lowest
        self.highest = max(self.highest, other.highest) if had else other.highest
        self.bins = array.array("q", map(int.__add__, self.bins, other.bins))
        self.nonfinite += other.nonfinite
        self.total += other.total
        self.squares += other.squares

    def histogram(self, name: str, quantity: str) -> Histogram:
        used = [i for i, count in enumerate(self.bins) if count] or [_BINS]
        first, end = used[0], used[-1] + 1
        about = (self.nonfinite, self.lowest, self.highest, self.total, self.squares)
        return Histogram(name, quantity, tuple(EDGES[first : end + 1]), tuple(self.bins[first:end]), *about)


def counted(values: Any, arrays: Arrays, factor: float = 1.0) -> Counted:
    """Counts the elements, each times `factor`; of complex ones the magnitudes.

    A bin is closed on the side of zero. The edges are exact in all formats, so that no rounding moves an element.
    """
    xp = arrays.xp
    values = (xp.abs(values) if arrays.is_complex(values) else values).reshape(-1)
    values = arrays.cast(values, xp.float64) * factor
    mantissas, exponents = xp.frexp(values)
    fits = xp.isfinite(values) & (exponents <= HIGHEST)
    finite = values[fits]
    found = Counted(nonfinite=len(values) - len(finite))
    if not len(finite):
        return found
    mantissas, exponents = xp.abs(mantissas[fits]), arrays.cast(exponents[fits], xp.int64)
    # A mantissa is 0.5 to 1: the power of two below the value is one less than its exponent.
    slots = 4 * (exponents - 1 - LOWEST) + arrays.cast(xp.floor((mantissas - 0.5) * 8), xp.int64)
    slots = xp.where((finite == 0) | (slots < 0), slots * 0 - 1, slots)  # -1: next to zero
    places = xp.where(finite < 0, _BINS - 1 - slots, _BINS + 1 + slots)
    places = xp.where(slots < 0, slots * 0 + _BINS, places)
    found.bins = array.array("q", xp.bincount(places, minlength=2 * _BINS + 1).tolist())
    found.lowest, found.highest = float(finite.min()), float(finite.max())
    found.total, found.squares = float(finite.sum()), float((finite * finite).sum())
    return found


def histograms_of(found: dict[str, Counted], quantity: str) -> list[Histogram]:
    return [one.histogram(name, quantity) for name, one in found.items()]
