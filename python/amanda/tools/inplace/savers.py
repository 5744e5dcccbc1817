"""Savers: which operator made a node of the backward graph."""

from __future__ import annotations

import collections
import threading
from typing import Any, NamedTuple

from amanda.toolkit import Place

KEPT = 200_000  # of the last operators that made nodes, on each thread


class Saver(NamedTuple):
    """An operator that may have saved tensors for its nodes."""

    place: Place
    inputs: tuple[str, ...]  # their names


class Savers:
    """The numbers of the nodes that operators have made. A thread numbers its nodes, so two threads have the same ones."""

    def __init__(self) -> None:
        self._running: dict[int, tuple[int, Saver]] = {}  # by thread: the last node of a Function, and whose
        self._made: dict[
            int, collections.deque[tuple[int, int, Saver]]
        ] = {}  # by thread: the first number, the end, whose

    def add(self, first: int, end: int, saver: Saver) -> None:
        thread = threading.get_ident()
        made = self._made.get(thread)
        if made is None:
            made = self._made[thread] = collections.deque(maxlen=KEPT)
        made.append((first, end, saver))

    def runs(self, node: Any, saver: Saver) -> None:
        """Notes that a node of an autograd.Function begins to run: no operator has made it."""
        self._running[threading.get_ident()] = (node._sequence_nr(), saver)

    def of(self, node: Any) -> Saver | None:
        """None if it is not known, or if operators of several threads have made nodes with its number."""
        number, running = node._sequence_nr(), self._running.get(threading.get_ident())
        if running is not None and running[0] == number:
            return running[1]
        made = [one for made in list(self._made.values()) for one in list(made)]
        found = {saver for first, end, saver in made if first <= number < end}
        return found.pop() if len(found) == 1 else None

    def clear(self) -> None:
        self._made.clear()
        self._running.clear()
