"""Buffers: the values that are in memory, by their addresses, and how many bytes of them there were at one time."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

from .rows import Kind

WINDOW = 20_000  # events between two looks for the peak


class Buffer:
    """A piece of memory that has values. It was there from `made` to `last`, and is still if something holds it."""

    # `made_by` is the number of a site, -1 if it is not known.
    __slots__ = (
        *("bytes", "holders", "is_saved", "kind", "last", "made", "made_by", "made_in_backward", "saver", "serial"),
        *("variable", "was_held"),
    )

    def __init__(self, serial: int, bytes: int, made_by: int, made_in_backward: bool, now: int) -> None:
        self.serial, self.bytes, self.made_by, self.made_in_backward = serial, bytes, made_by, made_in_backward
        self.made = self.last = now
        self.holders = 0  # objects of Python
        self.was_held = False
        self.saver = -1  # the site of a backward operator that took it
        self.is_saved = False  # it was freed while gradients were computed
        self.kind: Kind | None = None  # if it is known when it is made
        self.variable: Any = None  # the one that has it, or had it last


class Buffers:
    """Times are counted in events. A value whose end is not seen counts until it was last used.

    Attributes:
        now: the number of events so far.
        peak: the most bytes at one time, of the windows that are over.
        at_peak: these buffers.
        live_bytes: the bytes that objects of Python hold now.
    """

    def __init__(self) -> None:
        self._serials = itertools.count(1)
        self.reset()

    def reset(self) -> None:
        """Forgets all."""
        self.now = self.last_serial = self.peak = self.allocated_bytes = self.live_bytes = 0
        self.at_peak: list[Buffer] = []
        self._begin = 0  # of the window
        self._at: dict[int, Buffer] = {}  # by address: the newest
        self._window: dict[int, Buffer] = {}  # by serial: those that were there in it
        self._held: dict[int, Buffer] = {}

    def at(self, address: int) -> Buffer | None:
        return self._at.get(address)

    def tick(self) -> None:
        """An event."""
        self.now += 1
        if self.now - self._begin >= WINDOW:
            self.look()

    def use(self, buffer: Buffer) -> None:
        """It is in memory now."""
        buffer.last = self.now
        self._window[buffer.serial] = buffer

    def make(self, address: int | None, bytes: int, made_by: int, *, in_backward: bool) -> Buffer:
        """Memory that something has just got."""
        self.last_serial = next(self._serials)
        made = Buffer(self.last_serial, bytes, made_by, in_backward, self.now)
        self.allocated_bytes += bytes
        self.use(made)
        if address is not None:
            self._at[address] = made
        return made

    def hold(self, buffer: Buffer) -> None:
        """An object of Python has it, until `release`."""
        buffer.holders += 1
        buffer.was_held = True
        if buffer.holders == 1:
            self._held[buffer.serial] = buffer
            self.live_bytes += buffer.bytes
        self.use(buffer)

    def release(self, buffer: Buffer) -> None:
        buffer.holders -= 1
        if buffer.holders == 0 and self._held.pop(buffer.serial, None) is not None:
            self.live_bytes -= buffer.bytes
            self.use(buffer)

    def held(self) -> list[Buffer]:
        """Those that objects of Python hold now."""
        return list(self._held.values())

    def look(self) -> None:
        """Ends the window, and keeps the buffers of the moment with the most bytes if there were never more."""
        for buffer in list(self._held.values()):
            self.use(buffer)
        here = list(self._window.values())
        bytes, moment = _most(here, self._begin)
        if bytes > self.peak:
            self.peak, self.at_peak = bytes, [one for one in here if one.made <= moment <= one.last]
        self._begin, self._window = self.now, dict(self._held)
        self._at = {address: one for address, one in self._at.items() if one.holders or one.last == self.now}


def _most(buffers: Sequence[Buffer], begin: int) -> tuple[int, int]:
    """The most bytes that were there at one time, and that time."""
    changes: list[tuple[int, int]] = []
    for one in buffers:
        changes += [(2 * max(one.made, begin), one.bytes), (2 * one.last + 1, -one.bytes)]
    most, moment = max(_sums(sorted(changes)), default=(0, 0))
    return most, moment // 2


def _sums(changes: Iterable[tuple[int, int]]) -> Iterable[tuple[int, int]]:
    total = 0
    for time, change in changes:
        total += change
        yield total, time
