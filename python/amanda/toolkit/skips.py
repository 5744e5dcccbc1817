"""The arrays that the tools here can read, and those that they skip: one rule for all tools."""

from __future__ import annotations

import collections
import logging
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from amanda.core import evidence, fork
from amanda.core.evidence import Unseen
from amanda.toolkit.arrays import REASONS, UNWRITTEN, Arrays, known
from amanda.toolkit.unwritten import UnwrittenMemory

__all__ = ["Skips", "TellsSkips"]

T = TypeVar("T")


class Skips:
    """The numbers of values that a tool has skipped, by reason. Each reason is logged once, except for memory without
    values: most programs have some for a while.

    `memory`: the tool depends on it, and does not read memory that has no values yet.
    """

    def __init__(self, tool: str, memory: UnwrittenMemory | None = None) -> None:
        self._tool, self._memory = tool, memory
        self._counts: collections.Counter[str] = collections.Counter()
        self._said: set[str] = set()
        self._lock = fork.lock()

    def add(self, reason: str, detail: str = "") -> None:
        """Counts a value. `reason`: a key of `amanda.toolkit.arrays.REASONS`."""
        with self._lock:
            self._counts[reason] += 1
        if reason != UNWRITTEN:
            self.tell(reason, detail)

    def tell(self, reason: str, detail: str = "") -> None:
        """Logs a reason, once."""
        with self._lock:
            first = reason not in self._said
            self._said.add(reason)
        if first:
            why = f"{REASONS[reason]}{f' ({detail})' if detail else ''}"
            logging.getLogger("amanda").warning("[%s] skips what it can't read: %s (said once)", self._tool, why)

    def reset(self) -> None:
        """Sets all counts to zero. Reasons that were logged are not logged again."""
        with self._lock:
            self._counts.clear()

    def counts(self) -> dict[str, int]:
        """The number of values by reason."""
        with self._lock:
            return dict(self._counts)

    def caption(self) -> str:
        """A caption for tables; empty if nothing was skipped."""
        counts = self.counts()
        return "skipped: " + ", ".join(f"{count} {reason}" for reason, count in counts.items()) if counts else ""

    def unread(self, counts: Mapping[str, int] | None = None) -> list[Unseen]:
        """For `Tool.evidence`. `counts`: those of the tool, if it counts more."""
        return evidence.of_skips(self.counts() if counts is None else counts, REASONS)

    def is_unreadable(self, array: Any) -> bool:
        """The same as `unreadable`, and counts nothing."""
        return known(array).why_unreadable(array) is not None

    def unreadable(self, array: Any) -> bool:
        """Returns True, and counts the array, if it has no elements that a tool could compute with."""
        reason = known(array).why_unreadable(array)
        if reason is not None:
            self.add(reason)
        return reason is not None

    def is_several(self, array: Any) -> bool:
        """Returns True, and counts the array, if it stands for several at once, under `torch.vmap`."""
        several = bool(known(array).plain(array).shape != array.shape)
        if several:
            self.add("transformed")
        return several

    def read(self, array: Any, function: Callable[[Any, Arrays], T], *, unwritten: bool = False) -> T | None:
        """Calls `function` on the array without its wrappers. If it cannot be read, counts it and returns None.

        `function` receives elements that it can compute with, and their framework. It may still raise; this is counted
        too. `unwritten`: memory without values is read, too.
        """
        arrays = known(array)
        with arrays.quietly():
            reason, detail = arrays.why_unreadable(array), ""
            if reason is None and not unwritten and self._is_unwritten(array):
                reason = UNWRITTEN
            if reason is None:
                try:
                    return function(arrays.plain(array), arrays)
                except Exception as error:
                    reason, detail = "failed", f"{type(error).__name__}: {error}"
        self.add(reason, detail)
        return None

    def _is_unwritten(self, array: Any) -> bool:
        return self._memory is not None and self._memory.find(array) is not None

    def size(self, array: Any) -> int | None:
        """The bytes of the array's elements, readable or not. If unknown, counts the array and returns None."""
        arrays = known(array)
        with arrays.quietly():
            reason, detail = "symbolic", ""
            if not arrays.is_symbolic(array):
                try:
                    return arrays.nbytes(array)
                except Exception as error:
                    reason, detail = "failed", f"{type(error).__name__}: {error}"
        self.add(reason, detail)
        return None


class TellsSkips:
    """The property, and the remark below tables, of tools that have such `Skips`."""

    _skips: Skips

    @property
    def skipped(self) -> dict[str, int]:
        """The number of values that could not be read, and were left as they are, by reason."""
        return self._skips.counts()

    def _remarks(self, by: Any) -> list[str]:
        return [self._skips.caption()]
