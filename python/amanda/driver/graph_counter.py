"""Counts operators of graphs for `apply(..., coverage=True)`. It imports no framework: a counter may be open when a
program imports one."""

from __future__ import annotations

import threading
from collections import Counter


class OpenCounters(threading.local):
    """The counters of the scopes that this thread has entered, of one driver."""

    counters: tuple[GraphCounter, ...] = ()


class GraphCounter:
    """See `amanda.driver.protocol.CoverageCounter`.

    Arguments:
        tools: those of its scope, as numbers.
        here: its driver's counters.
    """

    def __init__(self, tools: list[int], here: OpenCounters) -> None:
        self.tools = tools
        self._here = here
        self._seen: Counter[tuple[str, bool]] = Counter()
        self._skipped: dict[tuple[str, bool], Counter[str]] = {}

    def open(self) -> None:
        self._here.counters = (*self._here.counters, self)

    def close(self) -> None:
        counters = list(self._here.counters)
        if self in counters:  # not where its thread has ended
            counters.remove(self)
        self._here.counters = tuple(counters)

    def rows(self) -> list[tuple[str, bool, int, dict[str, int]]]:
        return [
            (*key, self._seen[key], dict(self._skipped.get(key, {})))
            for key in dict.fromkeys([*self._seen, *self._skipped])
        ]

    def count(self, name: str, is_backward: bool, skipped: str | None = None) -> None:
        """`skipped`: why no tool was shown the operator, a key of `amanda.core.coverage.reasons.REASONS`."""
        if skipped is None:
            self._seen[name, is_backward] += 1
        else:
            self._skipped.setdefault((name, is_backward), Counter())[skipped] += 1
