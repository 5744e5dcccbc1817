"""Counts operators of compiled functions, for `apply(..., coverage=True)`: once for each graph that is instrumented."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from amanda.driver.graph_counter import GraphCounter, OpenCounters

if TYPE_CHECKING:
    from amanda.drivers.torch_compile.view.graph_site import Shown

_here = OpenCounters()


def make_counter(tools: list[int]) -> GraphCounter:
    return GraphCounter(tools, _here)


def count(shown: Iterable[Shown], unseen: Iterable[tuple[str, str]], runs_with_tools: bool) -> None:
    """A graph was instrumented. `unseen`: what tools could not be shown, and why."""
    if not _here.counters:
        return
    from amanda.drivers.torch_compile.view import attach

    for counter in _here.counters:
        for one in shown:
            name = f"autograd::{one.call.backward}" if one.is_backward else one.call.name
            asked = attach.COMPILE.is_asked_for(attach.intern(one.call.op), one.is_backward, counter.tools)
            counter.count(name, one.is_backward, "unasked" if not asked else None if runs_with_tools else "compiled")
        for what, _ in unseen:
            counter.count(what, what.startswith("autograd::"), "compiled")
