"""Counts operators of compiled functions, for `apply(..., coverage=True)`: once for each graph that is instrumented."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from amanda.drivers.torch_compile.view.graph_site import Shown


class CompiledCounter:
    """See `amanda.drivers.CoverageCounter`. `tools`: those of its scope, as numbers."""

    def __init__(self, tools: list[int]) -> None:
        self.tools = tools
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
            (*key, self._seen[key], dict(self._skipped.get(key, {})))
            for key in dict.fromkeys([*self._seen, *self._skipped])
        ]

    def count(self, name: str, is_backward: bool, skipped: str | None) -> None:
        if skipped is None:
            self._seen[name, is_backward] += 1
        else:
            self._skipped.setdefault((name, is_backward), Counter())[skipped] += 1


class _Here(threading.local):
    counters: tuple[CompiledCounter, ...] = ()  # of the scopes that this thread has entered


_here = _Here()


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
