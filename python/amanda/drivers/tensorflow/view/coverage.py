"""Counts operators for `apply(..., coverage=True)`. It does not import tensorflow: a counter may be open when a program
imports that.

An eager operator counts each time it runs, an operator of a graph once for each graph that is instrumented.
"""

from __future__ import annotations

from amanda import _core
from amanda.driver.graph_counter import GraphCounter, OpenCounters

_here = OpenCounters()


def make_counter(tools: list[int]) -> GraphCounter:
    return GraphCounter(tools, _here)


def is_open() -> bool:
    """True if a counter counts what runs, or is built, on this thread."""
    return bool(_here.counters)


def shown(backend: _core.GraphBackend, name: str, forward_type: int, is_backward: bool) -> None:
    """An operator that tools are shown if they ask for it. `name` is TensorFlow's, such as "Conv2D"."""
    for counter in _here.counters:
        asked = backend.is_asked_for(forward_type, is_backward, counter.tools)
        counter.count(f"tensorflow::{name}", is_backward, None if asked else "unasked")


def skipped(name: str, reason: str, is_backward: bool = False) -> None:
    """An operator that no tool was shown, and why: a key of `amanda.core.coverage.reasons.REASONS`."""
    for counter in _here.counters:
        counter.count(f"tensorflow::{name}", is_backward, reason)
