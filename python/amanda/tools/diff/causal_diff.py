"""CausalDiff: compares a run with a record, and reports causes, not what follows from them."""

from __future__ import annotations

import collections
import dataclasses
import os
import re
from collections.abc import Sequence
from typing import Any

from amanda.reports.results import Results
from amanda.tools.diff.record import Execution, Record, Station
from amanda.tools.diff.rows import GROUPINGS, GroupBy, Kind, Row
from amanda.tools.diff.watching import Watching


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

    def __init__(self, record: str | os.PathLike[str], *, rtol: float | None = None, atol: float | None = None) -> None:
        super().__init__("diff")
        for name, value in (("rtol", rtol), ("atol", atol)):
            if value is not None and not value >= 0:
                raise ValueError(f"[diff] {name}= is a tolerance, 0 or more, got {value!r}")
        self._record, self._rtol, self._atol = Record(record), rtol, atol
        self._by_id = {station.id: i for i, station in enumerate(self._record.stations)}
        self.reset()

    @property
    def differs(self) -> bool:
        """Is there a row?"""
        return bool(self.rows())

    def reset(self) -> None:
        self._runs: collections.Counter[tuple[int, int | None]] = collections.Counter()
        self._matches: dict[tuple[int, int | None], int | None] = {}
        self._seen: dict[tuple[int, int | None], Station] = {}
        self._unmatched = self._by_look()
        self._causes: dict[tuple[Any, ...], _Cause] = {}
        self._uncompared = 0  # results
        self._forward_causes: set[int] = set()  # operators by id

    def _by_look(self) -> dict[tuple[str, ...], collections.deque[int]]:
        places: dict[tuple[str, ...], collections.deque[int]] = collections.defaultdict(collections.deque)
        for i, station in enumerate(self._record.stations):
            places[station.look].append(i)
        return places

    def _match(self, station: Station, inputs: Sequence[str]) -> int | None:
        """The position of its counterpart in the record."""
        if station.id not in self._matches:
            self._seen[station.id] = station
            known, alike = self._by_id.get(station.id), self._unmatched[station.look]
            match = known
            if known is None and alike:
                match = max(alike, key=lambda i: self._agreement(i, inputs))  # the first of several
            if match is not None and match in alike:
                alike.remove(match)
            self._matches[station.id] = match
        return self._matches[station.id]

    def _agreement(self, match: int, inputs: Sequence[str]) -> int:
        """How many inputs of its first run are these."""
        theirs = self._record.runs(match)[0].inputs if self._record.runs(match) else []
        return sum(one == other for one, other in zip(theirs, inputs, strict=False))

    def _ran(self, station: Station, results: tuple[Any, ...], inputs: list[str], names: list[str]) -> Any:
        from amanda.tools.diff import tensors

        with self._lock:
            match, run = self._match(station, inputs), self._runs[station.id]
            self._runs[station.id] += 1
            runs = self._record.runs(match) if match is not None else []
            if run >= len(runs):
                return None
            reference = runs[run]
            ours = list(tensors.tensors_in(results))
            if len(ours) != len(reference.results):
                note = f"{len(ours)} tensors instead of {len(reference.results)}"
                self._add(station, run, 0, tensors.Difference("", (), 0, None, None, note), "operator", note)
                return None
            self._uncompared += reference.results.count(None)
            theirs = [None if number is None else self._record.tensor(number) for number in reference.results]
            host = [tensor.detach().cpu() for tensor in ours]
            unequal = [
                i
                for i, (one, other) in enumerate(zip(host, theirs, strict=True))
                if other is not None and not tensors.is_equal(one, other)
            ]
            for i in unequal:
                found = tensors.difference(host[i], theirs[i], self._rtol, self._atol)
                if found is not None:
                    self._add(station, run, i, found, *_explained(reference, inputs, names))
                    break
        if not unequal:
            return None
        references = iter(theirs)
        values = [tensors.healed(result, references) for result in results]
        return values[0] if len(values) == 1 else values

    def _add(self, station: Station, run: int, output: int, found: Any, kind: Kind, note: str) -> None:
        if station.backward_op and station.op_id in self._forward_causes:
            return  # it reads what its forward operator saved
        if not station.backward_op:
            self._forward_causes.add(station.op_id)
        parameters = re.findall(r"\((.*?)\)", note) if kind == "input" else []
        key = (kind, *parameters) if parameters else (kind, station.id)
        cause = self._causes.setdefault(key, _Cause(kind, station, run, output, found, note or found.note))
        cause.add(run, found)

    def _rows(self, by: GroupBy) -> list[Row]:
        with self._lock:
            rows = [cause.row() for cause in self._causes.values()]
            matched = set(self._matches.values())
            for identity, station in self._seen.items():
                match = self._matches[identity]
                count = 0 if match is None else len(self._record.runs(match))
                if match is None:
                    rows.append(_lone("only in this run", station, self._runs[identity]))
                elif count != self._runs[identity]:
                    note = f"ran {_times(self._runs[identity])}, in the reference {_times(count)}"
                    rows.append(_lone("other count", station, abs(count - self._runs[identity]), note))
            for i, station in enumerate(self._record.stations):
                if i not in matched:
                    rows.append(_lone("only in reference", station, len(self._record.runs(i))))
        return rows

    def _remarks(self, by: GroupBy) -> list[str]:
        with self._lock:
            uncompared = (
                f"{self._uncompared} results could not be stored, and were not compared" if self._uncompared else ""
            )
        complete = self._record.is_complete
        return ["" if complete else "the record was interrupted: what came after is not compared", uncompared]


@dataclasses.dataclass(eq=False)
class _Cause:
    kind: Kind
    station: Station
    first_run: int
    output: int
    first: Any  # the Difference there
    note: str
    runs: set[int] = dataclasses.field(default_factory=set)
    max_abs: float | None = None
    max_rel: float | None = None

    def add(self, run: int, found: Any) -> None:
        self.runs.add(run)
        self.max_abs = max((x for x in (self.max_abs, found.max_abs) if x is not None), default=None)
        self.max_rel = max((x for x in (self.max_rel, found.max_rel) if x is not None), default=None)

    def row(self) -> Row:
        station = self.station
        return Row(
            self.kind,
            station.operator,
            station.backward_op,
            station.op_id,
            station.module_path,
            station.source,
            len(self.runs),
            self.first_run,
            self.output,
            self.first.dtype,
            self.first.shape,
            self.first.elements,
            self.max_abs,
            self.max_rel,
            self.note,
        )


def _lone(kind: Kind, station: Station, runs: int, note: str = "") -> Row:
    where = station.operator, station.backward_op, station.op_id, station.module_path, station.source
    return Row(kind, *where, runs, None, None, "", None, None, None, None, note)


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _explained(reference: Execution, inputs: Sequence[str], names: Sequence[str]) -> tuple[Kind, str]:
    """Did it get other tensors? Else, which of its other arguments differ?"""
    if len(inputs) != len(reference.inputs):
        return "operator", ""
    changed = [
        (name, theirs, ours)
        for name, theirs, ours in zip(names, reference.inputs, inputs, strict=True)
        if theirs != ours and not _is_other_dtype(theirs, ours)
    ]
    others = [name for name, theirs, ours in changed if "tensor " in theirs and "tensor " in ours]
    if others:
        return "input", ", ".join(others)
    return "operator", ", ".join(f"{name}: {_short(theirs)} -> {_short(ours)}" for name, theirs, ours in changed)


def _is_other_dtype(theirs: str, ours: str) -> bool:
    """Tensors of two dtypes have other bits anyway; their values were compared where they were made."""
    both = theirs.startswith("tensor ") and ours.startswith("tensor ")
    return both and theirs.split("[")[0] != ours.split("[")[0]


def _short(text: str) -> str:
    return text.rpartition(" ")[0] if text.startswith("tensor ") else text
