"""Values: what an expression was, over many runs, aggregated."""

from __future__ import annotations

import array
import dataclasses
import itertools
import math
import random
from collections.abc import Sequence
from typing import Any

MOST_KEPT = 100_000
"""The number of values that are kept for quantiles and histograms. If there are more, a uniform sample is kept."""
MOST_PENDING = 256
BINS = 16

_clock = itertools.count()  # orders the latest values of several sites


class NotANumber(ValueError):
    """An expression's value is neither a number nor a tensor with one element."""


@dataclasses.dataclass(eq=False)
class Values:
    """The values of an expression. `min`, `max` and `total` cover the finite ones."""

    keeps: bool = False  # elements, for quantiles and histograms
    count: int = 0
    nonfinite: int = 0
    errors: int = 0  # runs in which the expression failed
    last: float = math.nan
    last_at: int = -1
    min: float = math.inf
    max: float = -math.inf
    total: float = 0.0
    kept: array.array[float] = dataclasses.field(default_factory=lambda: array.array("d"))
    seen: int = 0  # finite values of which `kept` is a sample
    _pending: list[Any] = dataclasses.field(default_factory=list)  # tensors on devices: the host does not wait for each
    _random: random.Random = dataclasses.field(default_factory=lambda: random.Random(0))

    def add(self, value: Any) -> None:
        """Adds a number, or a tensor or array with one element; if elements are kept, with any number of them.

        Raises:
            NotANumber: it is something else.
        """
        if isinstance(value, int | float):
            self._add(float(value))
            return
        size = getattr(value, "numel", None)
        count = size() if callable(size) else getattr(value, "size", None)
        if not isinstance(count, int):
            raise NotANumber(f"its value is {type(value).__name__}, not a number or a tensor")
        if count != 1 and not self.keeps:
            shape = list(value.shape)
            raise NotANumber(
                f"its value is a tensor of shape {shape}; reduce it to one number, as by .mean() or .abs().max(), or "
                "aggregate quantiles or a histogram"
            )
        if getattr(getattr(value, "device", None), "type", "cpu") not in ("cpu", "meta"):
            self._pending.append(value.detach().clone())
            if len(self._pending) >= MOST_PENDING:
                self.read()
            return
        self._add_elements(value)

    def read(self) -> None:
        """Adds what waits on a device."""
        pending, self._pending = self._pending, []
        for value in pending:
            try:
                self._add_elements(value)
            except NotANumber:
                self.errors += 1

    def merge(self, other: Values) -> None:
        other.read()
        self.count += other.count
        self.nonfinite += other.nonfinite
        self.errors += other.errors
        if other.last_at > self.last_at:
            self.last, self.last_at = other.last, other.last_at
        self.min, self.max = min(self.min, other.min), max(self.max, other.max)
        self.total += other.total
        self.kept.extend(other.kept)
        self.seen += other.seen

    def quantile(self, q: float) -> float | None:
        """A quantile of the finite values, interpolated linearly between the two nearest ones, as in
        `torch.quantile`."""
        if not self.kept:
            return None
        ordered = sorted(self.kept)
        at = q * (len(ordered) - 1)
        low = math.floor(at)
        high = min(low + 1, len(ordered) - 1)
        return ordered[low] + (ordered[high] - ordered[low]) * (at - low)

    def histogram(self) -> tuple[int, ...] | None:
        """The number of kept values in each of `BINS` equal parts of the range from `min` to `max`."""
        if not self.kept:
            return None
        low, width = min(self.kept), (max(self.kept) - min(self.kept)) / BINS
        counts = [0] * BINS
        for value in self.kept:
            counts[min(int((value - low) / width), BINS - 1) if width else 0] += 1
        return tuple(counts)

    def _add_elements(self, value: Any) -> None:
        try:
            elements = value.flatten().tolist()
        except Exception as error:
            raise NotANumber(f"its value can't be read: {type(error).__name__}: {error}") from error
        if any(isinstance(element, complex) for element in elements[:1]):
            raise NotANumber("its value is complex; use .abs(), .real or .imag")
        for element in elements:
            self._add(float(element))

    def _add(self, value: float) -> None:
        self.count += 1
        self.last, self.last_at = value, next(_clock)
        if not math.isfinite(value):
            self.nonfinite += 1
            return
        self.min, self.max = min(self.min, value), max(self.max, value)
        self.total += value
        if self.keeps:
            self._keep(value)

    def _keep(self, value: float) -> None:
        # J. S. Vitter: Random Sampling with a Reservoir, ACM Transactions on Mathematical Software 11(1), 1985.
        self.seen += 1
        if len(self.kept) < MOST_KEPT:
            self.kept.append(value)
        elif (place := self._random.randrange(self.seen)) < MOST_KEPT:
            self.kept[place] = value


def merged(some: Sequence[Values]) -> Values:
    together = Values(keeps=any(values.keeps for values in some))
    for values in some:
        together.merge(values)
    return together
