"""Counts operators for `apply(..., coverage=True)`: once for each graph that is instrumented."""

from __future__ import annotations

from amanda import _core
from amanda.driver.graph_counter import GraphCounter, OpenCounters

_here = OpenCounters()


def make_counter(tools: list[int]) -> GraphCounter:
    return GraphCounter(tools, _here)


def shown(backend: _core.GraphBackend, name: str, type: int) -> None:
    """An operator that tools are shown if they ask for it."""
    for counter in _here.counters:
        counter.count(name, False, None if backend.is_asked_for(type, False, counter.tools) else "unasked")


def skipped(name: str) -> None:
    """An operator in the body of another one, which no tool is shown."""
    for counter in _here.counters:
        counter.count(name, False, "graph")
