"""CausalDiff: compares a run with a record, and reports causes, not what follows from them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from amanda.reports.results import Results
from amanda.tools.diff.comparison import Comparison
from amanda.tools.diff.matching import Parting
from amanda.tools.diff.record import Record, Station
from amanda.tools.diff.rows import GROUPINGS, GroupBy, Row
from amanda.tools.diff.texts import text_of_tensor
from amanda.tools.diff.watching import Seen, Watching


class CausalDiff(Results[Row, GroupBy], Watching):
    """Compares the results of every operator with those of a record, and goes on with the record's::

        diff = CausalDiff("reference")
        with amanda.apply(diff):
            train(model)
        print(diff.table())

    Since each result that differs is replaced by the reference's, later operators get the same inputs as in the
    reference, and differ only if they are a cause themselves. The program's result is the reference's, too.

    Operators are matched by their ids. Where the program was changed, and with it the ids, an operator is matched with
    one of its type in the same module and at a line with the same text: that whose first inputs agree most. Executions
    of a place are compared in order. In-place operators without a result, as of ``foreach=True`` optimizers, are not
    compared.

    Rows are causes in the order in which they were found, then the operators that only one run has. See `Results` for
    `rows`, `table`, `to_pandas` and `reset`.

    Arguments:
        record: the folder that a `Recorder` has written.
        rtol, atol: differences up to ``atol + rtol * abs(reference)`` are no cause, but replaced, too. None: 0, bit for
            bit; where dtypes differ, what `torch.testing.assert_close` tolerates between them.

    Raises:
        ValueError: the folder has no record, or one of another version; a tolerance is negative.
        OSError: it cannot be read.
    """

    _speaker = "diff"
    _groupings = GROUPINGS

    def __init__(
        self,
        record: str | os.PathLike[str],
        *,
        rtol: float | None = None,
        atol: float | None = None,
        close: bool = False,
        heal: bool = True,
    ) -> None:
        super().__init__("diff")
        for name, value in (("rtol", rtol), ("atol", atol)):
            if value is not None and not value >= 0:
                raise ValueError(f"[diff] {name}= is a tolerance, 0 or more, got {value!r}")
        self._record, self._tolerances, self._heal = Record(record), (rtol, atol, close), heal
        self.reset()

    @property
    def differs(self) -> bool:
        """Is there a row?"""
        return bool(self.rows())

    @property
    def parting(self) -> Parting | None:
        """The operators from which on nearly none has a counterpart; None: the two programs match up to the end."""
        with self._lock:
            return self._comparison.matching.parting()

    def reset(self) -> None:
        self._comparison = Comparison(self._record, self._tolerances, heal=self._heal)
        self._numbers.clear()

    def _ran(self, station: Station, seen: Seen) -> Sequence[Any] | None:
        from amanda.tools.diff import tensors

        told = [text_of_tensor(tensor) for tensor in seen.tensors]

        def result(i: int) -> Any:
            return None if seen.are_views else tensors.kept(seen.tensors[i])

        with self._lock:
            return self._comparison.ran(station, told, seen.inputs, seen.forward, result)

    def _accumulates(self, station: Station, gradient: Any) -> None:
        with self._lock:
            if self._comparison.consequences:
                self._comparison.accumulates(text_of_tensor(gradient))

    def _rows(self, by: GroupBy) -> list[Row]:
        with self._lock:
            return self._comparison.rows()

    def _remarks(self, by: GroupBy) -> list[str]:
        with self._lock:
            unreadable, parting = self._comparison.unreadable, self._comparison.matching.parting()
        return [
            str(parting or ""),
            "" if self._record.is_complete else "the record was interrupted: what came after is not compared",
            f"{unreadable} results could not be read, and were not compared" if unreadable else "",
        ]
