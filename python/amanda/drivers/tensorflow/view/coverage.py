"""Counts operators for `apply(..., coverage=True)`. It does not import tensorflow: a counter may be open when a program
imports that.

An eager operator counts each time it runs, an operator of a graph once for each graph that is instrumented.
"""

from __future__ import annotations

import threading
from collections import Counter

from amanda import _core


class TensorFlowCounter:
    """See `amanda.drivers.CoverageCounter`. `tools`: those of its scope, as numbers."""

    def __init__(self, tools: list[int]) -> None:
        self._tools = tools
        self._seen: Counter[tuple[str, bool]] = Counter()
        self._skipped: dict[tuple[str, bool], Counter[str]] = {}

    def open(self) -> None:
        _here.counters = (*_here.counters, self)

    def close(self) -> None:
        counters = list(_here.counters)
        if self in counters:  # not where its thread has ended
            counters.remove(self)
        _here.counters = tuple(counters)

    def rows(self) -> list[tuple[str, bool, int, dict[str, int]]]:
        return [
            (name, is_backward, self._seen[name, is_backward], dict(self._skipped.get((name, is_backward), {})))
            for name, is_backward in dict.fromkeys([*self._seen, *self._skipped])
        ]

    def count(self, backend: _core.GraphBackend, name: str, forward_type: int, is_backward: bool) -> None:
        if backend.is_asked_for(forward_type, is_backward, self._tools):
            self._seen[name, is_backward] += 1
        else:
            self.skip(name, is_backward, "unasked")

    def skip(self, name: str, is_backward: bool, reason: str) -> None:
        self._skipped.setdefault((name, is_backward), Counter())[reason] += 1


class _Here(threading.local):
    counters: tuple[TensorFlowCounter, ...] = ()  # of the scopes that this thread has entered


_here = _Here()


def is_open() -> bool:
    """True if a counter counts what runs, or is built, on this thread."""
    return bool(_here.counters)


def shown(backend: _core.GraphBackend, name: str, forward_type: int, is_backward: bool) -> None:
    """An operator that tools are shown if they ask for it. `name` is TensorFlow's, such as "Conv2D"."""
    for counter in _here.counters:
        counter.count(backend, f"tensorflow::{name}", forward_type, is_backward)


def skipped(name: str, reason: str, is_backward: bool = False) -> None:
    """An operator that no tool was shown, and why: a key of `amanda.coverage.reasons.REASONS`."""
    for counter in _here.counters:
        counter.skip(f"tensorflow::{name}", is_backward, reason)
