"""RunLog: runs of a graph's operators, in the order of the program.

Operators of a graph run at the same time, and their routines later than they, in an order that differs from run to run.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any


class RunLog:
    """Each operator runs once in a run of its graph. Operators of several graphs, as of a loop and of what is around it,
    are in the order in which they came."""

    def __init__(self) -> None:
        self._count = 0
        self._runs: dict[Hashable, dict[int, tuple[int, Any]]] = {}  # by graph, then by the operator's number
        self._over: list[tuple[int, Any]] = []  # of runs that are over: places in the order, and what was added

    def __len__(self) -> int:
        return self._count

    def add(self, graph: Hashable, number: int, ran: Any) -> None:
        """An operator has run. `number`: a greater one is later in the program."""
        run = self._runs.setdefault(graph, {})
        if number in run:
            self._end(graph)
            run = self._runs[graph] = {}
        run[number] = self._count, ran
        self._count += 1

    def take(self) -> list[Any]:
        """All that was added since the last call, in the order of the program."""
        for graph in list(self._runs):
            self._end(graph)
        found = [ran for _, ran in sorted(self._over, key=lambda one: one[0])]
        self._count, self._over = 0, []
        return found

    def _end(self, graph: Hashable) -> None:
        run = self._runs.pop(graph)
        places = sorted(place for place, _ in run.values())
        self._over += zip(places, (run[number][1] for number in sorted(run)), strict=True)
