"""The smallest set of units that still differs when it is compiled as one, found by bisection."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

Units = tuple[int, ...]  # numbers of units, in order

# A set that has less than this part of the whole's score is not its cause, if another one has more.
_PARTS = (8.0, 128.0)


class Found(NamedTuple):
    units: Units
    is_cut: bool  # the time was over: a smaller set may differ, too


class Search:
    """Searches one graph.

    Arguments:
        count: the number of units, which are 0 to count - 1.
        score: how far a set of them is off when it is compiled as one: 0 if it does not differ, inf where a value is
            finite in one of the runs only.
        seconds: after this time it answers with the smallest set that it has found.
    """

    def __init__(
        self,
        count: int,
        score: Callable[[Units], float],
        seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._count, self._score, self._clock = count, score, clock
        self._known: dict[Units, float] = {}
        self._end = clock() + seconds
        self._smallest: Units = ()

    def smallest(self, whole: float) -> Found:
        """The smallest set that differs as the whole does, by its score.

        Rounding makes small differences nearly everywhere. So the set is looked for first that is off by as much as the
        whole, or nearly. Only if there is none, one with a smaller score is.
        """
        everything = tuple(range(self._count))
        self._known[everything] = whole
        for least in (*_least(whole), 0.0):
            self._smallest = everything
            try:
                self._narrow(least)
            except _OutOfTimeError:
                return Found(self._smallest, True)
            if len(self._smallest) < self._count:
                break
        return Found(self._smallest, False)

    def _narrow(self, least: float) -> None:
        self._keep_prefix(least)
        self._keep_suffix(least)
        size = len(self._smallest) // 2
        while size:
            self._leave_out(size, least)
            size //= 2
        while self._leave_out(1, least):
            pass

    def _keep_prefix(self, least: float) -> None:
        whole = self._smallest
        short, enough = 0, len(whole)
        while enough - short > 1:
            middle = (short + enough) // 2
            if self._differs(whole[:middle], least):
                enough = middle
            else:
                short = middle

    def _keep_suffix(self, least: float) -> None:
        whole = self._smallest
        enough, short = 0, len(whole)
        while short - enough > 1:
            middle = (short + enough) // 2
            if self._differs(whole[middle:], least):
                enough = middle
            else:
                short = middle

    def _leave_out(self, size: int, least: float) -> bool:
        """Leaves out as many neighbors as `size` wherever the rest still differs; False if it never does."""
        has_changed, start = False, 0
        while start < len(self._smallest):
            rest = self._smallest[:start] + self._smallest[start + size :]
            if rest and self._differs(rest, least):
                has_changed = True
            else:
                start += size
        return has_changed

    def _differs(self, units: Units, least: float) -> bool:
        if units not in self._known:
            if self._clock() > self._end:
                raise _OutOfTimeError
            self._known[units] = self._score(units)
        differs = self._known[units] > 0 and self._known[units] >= least
        if differs:
            self._smallest = units
        return differs


class _OutOfTimeError(Exception):
    pass


def _least(whole: float) -> Sequence[float]:
    return [math.inf] if math.isinf(whole) else [whole / part for part in _PARTS]
