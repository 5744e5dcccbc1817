"""Durations: how long the runs of an operator took, in memory that does not grow with their number."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

__all__ = ["BITS", "Durations"]

BITS = 8
"""Binary digits that are kept of each duration: up to 255 ns all of them have their own bucket; of 256 to 511 ns every two
share one, and so on."""


@dataclasses.dataclass(eq=False)
class Durations:
    """Their number, their sum, and a histogram for the median.

    Buckets are as wide as 1/128 of their durations or narrower, so the median is at most 1/256 (0.4%) off. Durations
    from 100 ns to 100 s fill 4,000 buckets at most; those of one operator usually fill some dozens.
    """

    count: int = 0
    total_ns: int = 0
    buckets: dict[int, int] = dataclasses.field(default_factory=dict)  # how many, by the shortest in the bucket

    def add(self, ns: int) -> None:
        """Adds the duration of one run."""
        self.count += 1
        self.total_ns += ns
        shift = ns.bit_length() - BITS
        shortest = ns >> shift << shift if shift > 0 else ns
        self.buckets[shortest] = self.buckets.get(shortest, 0) + 1

    def median_ns(self) -> float:
        """The median, the mean of the middle two if their number is even; NaN if there are none."""
        if not self.count:
            return float("nan")
        return (self._ranked((self.count - 1) // 2) + self._ranked(self.count // 2)) / 2

    def _ranked(self, rank: int) -> float:
        """The middle of the bucket in which the duration with so many shorter ones is."""
        for shortest in sorted(self.buckets):
            rank -= self.buckets[shortest]
            if rank < 0:
                return shortest + ((1 << max(shortest.bit_length() - BITS, 0)) - 1) / 2
        raise AssertionError("every duration is in a bucket")

    @classmethod
    def all_of(cls, parts: Iterable[Durations]) -> Durations:
        """All durations of several objects, as one."""
        whole = cls()
        for part in parts:
            whole.count += part.count
            whole.total_ns += part.total_ns
            for shortest, count in part.buckets.items():
                whole.buckets[shortest] = whole.buckets.get(shortest, 0) + count
        return whole
