"""Differences: the results of a comparison, of a run or of two records."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Iterator
from typing import Any, ClassVar

from amanda import disabled
from amanda.toolkit.evidence import counted
from amanda.toolkit.tables import Progress, Results

from .compared import Stop
from .comparison import Comparison
from .folded import fold
from .matching import Parting
from .record import Execution, Record, Station
from .rows import GROUPINGS, LONE, GroupBy
from .tolerances import Tolerances
from .watching import Seen

_HOW_MATCHED = (
    "operators of other code are compared if they have the same type, and a tensor with the same elements or a module with "
    "the same name"
)


class Differences(Results[Any, GroupBy]):
    """Rows by "id" (the default) are causes in the order in which they were found, then the operators that only one run
    has. By "change" one change of many operators, as in all layers, is one row, and the largest comes first. See
    `amanda.toolkit.Results` for `rows`, `table` and `to_pandas`."""

    _speaker = "diff"
    _groupings = GROUPINGS
    _lock: threading.Lock | Any
    _record: Record
    _comparison: Comparison
    _damage = ""
    _early: ClassVar[str] = "the program failed or was stopped"

    @property
    def compared(self) -> int:
        """The number of operators' runs that it has seen so far."""
        raise NotImplementedError

    @property
    def recorded(self) -> int:
        """The number of executions in the record."""
        return len(self._record.executions)

    def _unseen(self) -> list[str]:
        """The parts that ran, and were not seen as they run without tools, as sentences."""
        raise NotImplementedError

    @property
    def differs(self) -> bool:
        """True if a value differs, or may: there is a row, and it is not known that both programs compute the same."""
        return bool(self.rows()) and not self.agrees

    @property
    def agrees(self) -> bool:
        """True if both programs compute the same in other ways. No value is known to differ beyond rounding. Operators
        that both have read what those of one program compute, and agree, or both have that result. Rows then list these
        operators, and views of another form."""
        with disabled(), self._lock:  # it may read the record inside the scope
            return self._comparison.agrees

    @property
    def summary(self) -> str:
        """The number of differences, what was compared, and what was not, in sentences for a user. It says "0
        differences" if all was compared."""
        count, missing = len(self.rows()), self.not_compared
        what = f"{count:,} difference{'s' * (count != 1)} in {self._comparison.compared}"
        if missing and not count:
            what = f"no difference in what was compared ({self._comparison.compared})"
        elif count and self.agrees:
            ways = f"{counted(count, 'difference')} in how it is computed"
            what = f"no value differs beyond rounding; {ways}, in {self._comparison.compared}"
        rest = f"; not compared: {', '.join(missing)}" if missing else ""
        return "\n".join(filter(None, [str(self.stopped or ""), f"{what}{rest}"]))

    @property
    def not_compared(self) -> list[str]:
        """The parts of the programs that were not compared, in words; empty if all was compared."""
        with self._lock:
            return list(self._missing())

    @property
    def stopped(self) -> Stop | None:
        """The place where the comparison has ended before the programs; None if it has not."""
        matching, why = self._comparison.matching, self._damage
        if not why and matching.has_ended_early:
            why = self._early
        return Stop(matching.last, self.compared, self.recorded, why) if why else None

    @property
    def damage(self) -> str:
        """The reason why the comparison ended: a file of a record that has changed since it was written. "" if there is
        none."""
        return self._damage

    @property
    def parting(self) -> Parting | None:
        """The operators from which on nearly none has a counterpart; None if the two programs match up to the end."""
        with self._lock:
            return self._comparison.matching.parting()

    def answer(self) -> str:
        """The largest change, and what the second run computed with; "" if nothing differs."""
        changes = fold(self._rows("id"))
        if not changes:
            return ""
        largest = changes[0]
        same = "both programs compute the same, in other ways" if self.agrees else ""
        name = largest.backward_op or largest.name
        count = counted(largest.operators, "operator")
        if largest.kind in LONE:
            lone = counted(len(self._rows("id")), "operator")
            first = (
                f"only one of the runs has, or runs so often, {lone}: first {name} at {largest.where}, {largest.kind}"
            )
            parting = f"{self.parting}\n{_HOW_MATCHED}" if self.parting is not None else ""
            with disabled(), self._lock:  # it may read the record inside the scope
                other = [
                    same,
                    self._comparison.origin,
                    parting or first,
                    self._comparison.agreement,
                    self._comparison.not_known,
                ]
            return "\n".join(filter(None, [*other, self._went_on]))
        which = "the only change" if len(changes) == 1 else f"the largest of {len(changes):,} changes"
        what = " ".join(filter(None, [largest.note, f"in {name}", f"at {largest.where}" if largest.where else ""]))
        size = "" if largest.max_abs is None else f", which moves results by up to {largest.max_abs:.4g}"
        with disabled(), self._lock:  # it may read the record inside the scope
            origin, agreement = self._comparison.origin, self._comparison.agreement if same else ""
        return "\n".join(filter(None, [same, f"{which}: {what} ({count}){size}", origin, agreement, self._went_on]))

    @property
    def _went_on(self) -> str:
        """The values with which a second run went on, in words; "" if they are its own."""
        return ""

    def _rows(self, by: GroupBy) -> list[Any]:
        with self._lock:
            rows = self._comparison.rows()
        return fold(rows) if by == "change" else rows

    def _remarks(self, by: GroupBy) -> list[str]:
        not_compared = (f"not compared: {part}" for part in self.not_compared)
        return [str(self.parting or ""), str(self.stopped or ""), *not_compared]

    def _missing(self) -> Iterator[str]:
        compared, record = self._comparison.compared, self._record
        if self.stopped and len(self._comparison.matching.comparable) < len(record.executions):
            yield "what comes after that"
        yield from compared.missing()
        if not record.is_complete:
            yield "what comes after the end of the record, whose program failed or was stopped"
        yield from self._unseen()
        yield from (f"{text} in the reference" for text in record.unseen)
        if compared.is_nothing:
            yield "anything at all, as no operator that both have returned a tensor"


class RecordDiff(Differences):
    """Compares two records: of two ranks, two machines or two versions of a library, where no third run is wanted::

        print(RecordDiff("reference/rank0", "reference/rank1").table())

    Nothing is replaced here, so an operator that reads a result that differs is not compared. The contents of its
    inputs show that it follows from another one. So fewer causes are found than by `CausalDiff`, where one hides
    another.

    Arguments:
        reference, record: folders that a `Recorder` has written.
        rtol, atol, close: as of `CausalDiff`.
        progress: a bar on standard error while it reads and compares, if that is a terminal; see
            `amanda.reports.progress.Progress`.

    Raises:
        ValueError: a folder has no record, or one of another version, or a damaged one; a tolerance is negative.
        OSError: one cannot be read.
    """

    _early = "the program of the second record failed or was stopped"

    def __init__(
        self,
        reference: str | os.PathLike[str],
        record: str | os.PathLike[str],
        *,
        rtol: float | None = None,
        atol: float | None = None,
        close: bool = False,
        progress: bool = True,
    ) -> None:
        self._lock = threading.Lock()
        self._tolerances = tolerances_of(rtol, atol, close)
        self._shows_progress = progress
        self._record, self._other = (Record(folder, progress=progress) for folder in (reference, record))
        self.reset()

    def reset(self) -> None:
        """Compares again."""
        self._comparison = Comparison(self._record, self._tolerances, heal=False)
        self._comparison.matching.has_ended_early = not self._other.is_complete
        executions = self._other.executions
        with Progress("comparing the records", len(executions), show=self._shows_progress) as progress:
            for i, execution in executions:
                self._compare(self._other.stations[i], execution)
                progress.advance()

    @property
    def compared(self) -> int:
        return len(self._other.executions)

    def _compare(self, station: Station, execution: Execution) -> None:
        if station.accumulates:
            self._comparison.accumulates(execution.inputs[0])
        are_views = station.is_view and not any(number is not None for number in execution.results)
        seen = Seen([], execution.inputs, execution.forward, are_views)
        self._comparison.ran(station, execution.outputs, seen, functools.partial(self._other.result, execution))

    def _unseen(self) -> list[str]:
        return self._other.unseen


def tolerances_of(rtol: float | None, atol: float | None, close: bool) -> Tolerances:
    """Raises `ValueError`: one is negative."""
    for name, value in (("rtol", rtol), ("atol", atol)):
        if value is not None and not value >= 0:
            raise ValueError(f"[diff] {name}= is a tolerance, 0 or more, got {value!r}")
    return Tolerances(rtol, atol, close)
