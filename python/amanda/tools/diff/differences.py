"""Differences: the results of a comparison, of a run or of two records."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

from amanda.reports.progress import Progress
from amanda.reports.results import Results
from amanda.tools.diff.comparison import Comparison
from amanda.tools.diff.matching import Parting
from amanda.tools.diff.record import Execution, Record, Station
from amanda.tools.diff.rows import GROUPINGS, GroupBy, Row
from amanda.tools.diff.watching import Seen


class Differences(Results[Row, GroupBy]):
    """Rows are causes in the order in which they were found, then the operators that only one run has. See
    `amanda.reports.Results` for `rows`, `table` and `to_pandas`."""

    _speaker = "diff"
    _groupings = GROUPINGS
    _lock: threading.Lock | Any
    _record: Record
    _comparison: Comparison

    @property
    def differs(self) -> bool:
        """Is there a row?"""
        return bool(self.rows())

    @property
    def parting(self) -> Parting | None:
        """The operators from which on nearly none has a counterpart; None: the two programs match up to the end."""
        with self._lock:
            return self._comparison.matching.parting()

    def _rows(self, by: GroupBy) -> list[Row]:
        with self._lock:
            return self._comparison.rows()

    def _remarks(self, by: GroupBy) -> list[str]:
        unreadable = self._comparison.unreadable
        return [
            str(self.parting or ""),
            "" if self._record.is_complete else "the record was interrupted: what came after is not compared",
            f"{unreadable} results could not be read, and were not compared" if unreadable else "",
        ]


class RecordDiff(Differences):
    """Compares two records: of two ranks, two machines or two versions of a library, where no third run is wanted::

        print(RecordDiff("reference/rank0", "reference/rank1").table())

    Nothing is replaced here, so an operator that reads what differs is not compared: it is told by the contents of its
    inputs that it follows from another one. So fewer causes are found than by `CausalDiff`, where one hides another.

    Arguments:
        reference, record: folders that a `Recorder` has written.
        rtol, atol, close: as of `CausalDiff`.
        progress: a bar on standard error while it reads and compares, if that is a terminal; see
            `amanda.reports.progress.Progress`.

    Raises:
        ImportError: numpy or safetensors is not installed.
        ValueError: a folder has no record, or one of another version; a tolerance is negative.
        OSError: one cannot be read.
    """

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
        executions = self._other.executions
        with Progress("comparing the records", len(executions), show=self._shows_progress) as progress:
            for i, execution in executions:
                self._compare(self._other.stations[i], execution)
                progress.advance()

    def _compare(self, station: Station, execution: Execution) -> None:
        if station.accumulates:
            self._comparison.accumulates(execution.inputs[0])
        else:
            are_views = station.is_view and not any(number is not None for number in execution.results)
            seen = Seen([], execution.inputs, execution.forward, are_views)
            self._comparison.ran(station, execution.told, seen, self._tensor_of(execution.results))

    def _tensor_of(self, numbers: list[int | None]) -> Callable[[int], Any]:
        def tensor(i: int) -> Any:
            number = numbers[i]
            return None if number is None else self._other.tensor(number)

        return tensor

    def _remarks(self, by: GroupBy) -> list[str]:
        other = "" if self._other.is_complete else "the second record was interrupted"
        return [*super()._remarks(by), other]


def tolerances_of(rtol: float | None, atol: float | None, close: bool) -> tuple[float | None, float | None, bool]:
    """Raises `ValueError`: one is negative."""
    for name, value in (("rtol", rtol), ("atol", atol)):
        if value is not None and not value >= 0:
            raise ValueError(f"[diff] {name}= is a tolerance, 0 or more, got {value!r}")
    return rtol, atol, close
