"""Notifies tables that are keyed by address or number of the deaths of their keys.

Drivers record deaths as they happen, without running Python code. `Lifetimes.tell` passes them on before the next place
is resolved. Until then a table may still hold dead keys, so look up only what is alive.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence


class Lifetimes:
    """The deaths of one kind of object. `dead` returns the keys of those that died since the last call."""

    def __init__(self, dead: Callable[[], Sequence[int]]) -> None:
        self._dead = dead
        self._listeners: list[Callable[[int], object]] = []
        self._pending: list[tuple[Callable[[int], object], int]] = []

    def listen(self, forget: Callable[[int], object]) -> None:
        """Calls `forget(key)` for each object that dies from now on."""
        self._listeners.append(forget)

    def tell(self) -> None:
        """Calls the listeners for the deaths since the last call. When it returns, `dead` has returned none."""
        while True:
            while self._pending:  # after an exception in a signal handler, the next call continues
                forget, key = self._pending[-1]
                forget(key)
                self._pending.pop()
            dead = self._dead()
            if not dead:
                return
            self._pending.extend((forget, key) for key in dead for forget in self._listeners)
