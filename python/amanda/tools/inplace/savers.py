"""Savers: which operator made a node of the backward graph."""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

from amanda import OpContext
from amanda.toolkit import Place, locks, native

from .called import place_of


class Saver(NamedTuple):
    """An operator that may have saved tensors for its nodes."""

    place: Place
    inputs: tuple[str, ...]  # their names


class Savers:
    """The numbers of the nodes that operators have made, which routines in C++ note."""

    def __init__(self) -> None:
        self._running: dict[int, tuple[int, Saver]] = {}  # by thread: the last node of a Function, and whose
        self._lock = locks.rlock()  # guards the members below
        self._made: Any = None  # torch_tools.NodeMakers, once an operator of PyTorch runs
        self._savers: list[Saver] = []  # by their numbers in C++

    def watch(self, context: OpContext) -> None:
        """Notes the nodes that the operator makes."""
        with self._lock:
            self._made = self._made or native.torch_tools.NodeMakers()
            self._savers.append(Saver(place_of(context), tuple(context.op.input_names)))
            number = len(self._savers) - 1
        context.insert_before_op(native.always(self._made.beginning()), [])
        context.insert_after_op(native.always(self._made.ending(number)), [])

    def runs(self, node: Any, saver: Saver) -> None:
        """Notes that a node of an autograd.Function begins to run: no operator has made it."""
        self._running[threading.get_ident()] = (node._sequence_nr(), saver)

    def of(self, node: Any) -> Saver | None:
        """None if it is not known, or if operators of several threads have made nodes with its number."""
        number, running = node._sequence_nr(), self._running.get(threading.get_ident())
        if running is not None and running[0] == number:
            return running[1]
        found = set() if self._made is None else {self._savers[one] for one in self._made.of(number)}
        return found.pop() if len(found) == 1 else None

    def clear(self) -> None:
        if self._made is not None:
            self._made.clear()
        self._running.clear()
