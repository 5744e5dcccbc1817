"""Counts eager operators, and those of compiled functions."""

from __future__ import annotations

from collections import Counter

from amanda.driver.protocol import CoverageCounter


class Counters:
    """Two counters as one. See `amanda.driver.protocol.CoverageCounter`."""

    def __init__(self, *counters: CoverageCounter) -> None:
        self._counters = counters

    def open(self) -> None:
        for counter in self._counters:
            counter.open()

    def close(self) -> None:
        for counter in reversed(self._counters):
            counter.close()

    def rows(self) -> list[tuple[str, bool, int, dict[str, int]]]:
        seen: Counter[tuple[str, bool]] = Counter()
        skipped: dict[tuple[str, bool], Counter[str]] = {}
        for counter in self._counters:
            for name, is_node, times, reasons in counter.rows():
                seen[name, is_node] += times
                skipped.setdefault((name, is_node), Counter()).update(reasons)
        return [(*key, times, dict(skipped[key])) for key, times in seen.items()]
