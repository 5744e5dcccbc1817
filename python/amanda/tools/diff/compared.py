"""Compared: what a comparison has looked at, and what it could not look at."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Sequence

from amanda.toolkit.arrays import REASONS
from amanda.toolkit.frames import line_in_cell

from . import texts
from .record import Station


@dataclasses.dataclass(eq=False)
class Compared:
    """Counts, while a comparison goes on."""

    operators: set[tuple[int, int | None]] = dataclasses.field(default_factory=set)
    directions: set[str] = dataclasses.field(default_factory=set)
    results: int = 0
    tolerated: int = 0  # that differ
    hidden: int = 0  # in another dtype than the reference's, with no more than hashes
    unreadable: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)  # by reason

    def add(self, station: Station, outputs: Sequence[str]) -> None:
        """An execution that has a counterpart. `outputs`: texts of its results."""
        self.operators.add(station.id)
        self.directions.add("backward" if station.backward_op else "forward")
        for text in outputs:
            reason = texts.why_unreadable(text)
            if reason is None:
                self.results += 1
            else:
                self.unreadable[reason] += 1

    def hide(self, *, is_view: bool) -> None:
        """One of the results that were added cannot be compared. The contents of a view are compared where they were
        made."""
        self.results -= 1
        self.hidden += not is_view

    @property
    def is_nothing(self) -> bool:
        return not self.results

    def missing(self) -> list[str]:
        """The parts that were not compared, as sentences."""
        found = []
        if self.unreadable:
            reasons = "; ".join(f"{count:,}: {REASONS[reason]}" for reason, count in self.unreadable.most_common())
            found.append(f"{_counted(sum(self.unreadable.values()), 'result')} that could not be read ({reasons})")
        if self.hidden:
            found.append(f"{_counted(self.hidden, 'result')} in another dtype, of which checksums are known only")
        return found

    def __str__(self) -> str:
        directions = " and ".join(sorted(self.directions, reverse=True))
        tolerated = f"{self.tolerated:,} of them within the tolerances" if self.tolerated else ""
        counts = _counted(len(self.operators), "operator"), _counted(self.results, "result")
        return ", ".join(filter(None, [*counts, directions, tolerated]))


@dataclasses.dataclass(frozen=True)
class Stop:
    """The place where a comparison has ended before the programs have."""

    last: Station | None  # the operator that was compared last
    compared: int  # runs of operators
    recorded: int  # in the reference
    why: str

    def __str__(self) -> str:
        where = ""
        if self.last is not None:
            module = f" in {self.last.module_path}" if self.last.module_path else ""
            where = f"{self.last.backward_op or self.last.operator}{module} ({line_in_cell(self.last.source)}), "
        return f"stopped here: {where}after {self.compared:,} of {self.recorded:,} runs of operators: {self.why}"


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'s' * (count != 1)}"
