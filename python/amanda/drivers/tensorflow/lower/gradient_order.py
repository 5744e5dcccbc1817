"""Keeps the order in which TensorFlow sums gradients, which taps between operators would change, and with it the last bit.

TensorFlow differentiates a graph by a queue of operators whose gradients are complete. A tap is taken from it at once, and
what it completes gets the tap's place in the queue: so the other operators come in the order in which they do without taps.
"""

from __future__ import annotations

import collections
from typing import Any


class Queue:
    """The part of a collections.deque that TensorFlow's gradients use, for operators."""

    def __init__(self, operators: Any = ()) -> None:
        self._places: collections.deque[Any] = collections.deque(operators)  # operators; of a tap, what it completed
        self._taps: collections.deque[tuple[Any, list[Any]]] = collections.deque()
        self._of_tap: list[Any] | None = None  # where what the last one completes belongs

    def append(self, op: Any) -> None:
        places: Any = self._places if self._of_tap is None else self._of_tap
        if getattr(op, "type", None) == "AmandaTap":
            place: list[Any] = []
            places.append(place)
            self._taps.append((op, place))
        else:
            places.append(op)

    def extend(self, operators: Any) -> None:
        for op in operators:
            self.append(op)

    def popleft(self) -> Any:
        if self._taps:
            tap, self._of_tap = self._taps.popleft()
            return tap
        self._of_tap = None
        self._open()
        return self._places.popleft()

    def __bool__(self) -> bool:
        self._open()
        return bool(self._taps or self._places)

    def _open(self) -> None:
        """The first place is an operator's, if all taps were taken."""
        while not self._taps and self._places and isinstance(self._places[0], list):
            self._places.extendleft(reversed(self._places.popleft()))


class Collections:
    """The module, as TensorFlow's gradients use it."""

    deque = Queue

    def __getattr__(self, name: str) -> Any:
        return getattr(collections, name)
