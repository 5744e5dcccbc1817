"""CausalDiff: compares a run with a record, and reports causes, not what follows from them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from . import values
from .comparison import Comparison
from .differences import Differences, tolerances_of
from .record import DamagedRecord, Record, Station
from .texts import text_of_array
from .watching import Seen, Watching, is_early


class CausalDiff(Differences, Watching):
    """Compares the results of every operator with those of a record, and goes on with the record's::

        diff = CausalDiff("reference")
        with amanda.apply(diff):
            train(model)
        print(diff.table())

    Since each result that differs is replaced by the reference's, later operators get the same inputs as in the
    reference, and differ only if they are a cause themselves. The program's result is the reference's, too.

    Operators are matched by their ids. Where the program was changed, and with it the ids, an operator is matched with
    one of its type in the same module and at a line with the same text: that whose first inputs agree most. Executions
    of a place are compared in order. Operands that an operator changes in place are compared and replaced as its results
    are.

    Some results cannot be replaced: those of operators that only this run has, and views. They are followed by their
    contents. An operator that reads them differs as a consequence, and is not listed.

    Rows by "id" (the default) are causes in the order in which they were found, then the operators that only one run
    has. By "change" one change of many operators is one row; the largest comes first. See `Results` for `rows`, `table`,
    `to_pandas` and `reset`.

    Arguments:
        record: the folder that a `Recorder` has written.
        rtol, atol: differences up to ``atol + rtol * abs(reference)`` are no cause, but replaced, too. By default, they
            are 0, bit for bit. Where dtypes differ, they are the tolerances of `torch.testing.assert_close` between
            them.
        close: tolerates what `torch.testing.assert_close` does for each dtype, unless `rtol` or `atol` is given.
        float64: runs once more each operator that is a cause, although it got the same inputs as in the reference. This
            run has float64 copies of the inputs. Rows have the distances of both results from its result, in units of
            the last place. The inputs of all operators are copied. Operators that draw random numbers are left out.
        lines: see `Recorder`.
        progress: a bar on standard error while the record is read, if that is a terminal; see
            `amanda.reports.progress.Progress`.

    Raises:
        ValueError: the folder has no record, or one of another version, or a damaged one; a tolerance is negative.
        OSError: it cannot be read.
    """

    def __init__(
        self,
        record: str | os.PathLike[str],
        *,
        rtol: float | None = None,
        atol: float | None = None,
        close: bool = False,
        float64: bool = False,
        lines: bool = True,
        progress: bool = True,
    ) -> None:
        super().__init__("diff", float64=float64, lines=lines)
        self._tolerances, self._record = tolerances_of(rtol, atol, close), Record(record, progress=progress)
        self.reset()

    @property
    def _went_on(self) -> str:
        if not self._comparison.has_replaced:
            return ""  # as eager operators of TensorFlow
        but = ", but for those that could not be replaced" if self._comparison.has_left else ""
        follows = "what it has printed, such as its loss, follows these"
        return f"the second run went on with the reference's results{but}: {follows}"

    def reset(self) -> None:
        self._comparison = Comparison(self._record, self._tolerances, heal=True)
        self._numbers.clear()
        self._compared, self._damage = 0, ""
        self.reset_evidence()
        self._unreadable.clear()

    @property
    def compared(self) -> int:
        """The number of operators' runs that it has seen so far."""
        return self._compared

    def on_enter(self) -> None:
        self.set_ended_early(False)

    def on_exit(self, error: BaseException | None) -> None:
        self.set_ended_early(is_early(error))

    def set_ended_early(self, has: bool = True) -> None:
        """The program has failed, or was stopped: what it has not reached of the reference is no difference. A scope that
        an exception ends has called it."""
        self._comparison.matching.has_ended_early = has or bool(self._damage)

    def _unseen(self) -> list[str]:
        return self._unwatched()

    def _ran(self, station: Station, seen: Seen) -> Sequence[Any] | None:
        outputs = [text_of_array(tensor) for tensor in seen.tensors]

        def result(i: int) -> Any:
            return None if seen.are_views else values.kept(seen.tensors[i])

        with self._lock:
            if self._damage:
                return None
            self._compared += 1
            self._note_unreadable(outputs)
            try:
                return self._comparison.ran(station, outputs, seen, result)
            except DamagedRecord as error:  # the program goes on
                self._damage = str(error)
                self.set_ended_early()
                return None

    def _accumulated(self, station: Station, seen: Seen) -> Sequence[Any] | None:
        if self._damage:
            return None
        with self._lock:
            if self._comparison.consequences:
                self._comparison.accumulates(seen.inputs[0])
        return self._ran(station, seen)
