"""Profile: the time and the output size of every operator, as tables and as a trace."""

from __future__ import annotations

import dataclasses
import logging
import math
import operator
import os
import threading
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from amanda import _core, _fork, _tools
from amanda.op_context import OpContext
from amanda.reports import chrome_trace
from amanda.reports.columns import name_column, number_column
from amanda.reports.data_frame import fields_of
from amanda.reports.places import PLACE_FIELDS, GroupBy, Place
from amanda.reports.results import Grouping, Results
from amanda.reports.rich_table import Column
from amanda.tool import Tool
from amanda.tools import _reading
from amanda.tools._arrays import arrays_of
from amanda.tools._durations import Durations
from amanda.tools._native import natively


@dataclasses.dataclass(frozen=True)
class Row:
    """All runs of one operator type, or of all operators of one module or line, or of one operator by "id"."""

    name: str  # "aten::conv2d", or a module path, or a line; "" for operators outside modules
    calls: int
    total_ns: int
    median_ns: float  # at most 0.4% off
    output_bytes: int  # of all runs together
    share: float  # of the time of all operators, 0 to 1
    op_id: int | None = None  # by "id"; else None
    module_path: str = ""  # by "id" and "module"
    source: str = ""  # file:line of the call, by "id" and "line"

    @property
    def mean_ns(self) -> float:
        """The mean time of a call, in nanoseconds."""
        return self.total_ns / self.calls


SKIP_IS = "[profile] skip= is how many executions of each operator to leave out"


class Profile(Results[Row, GroupBy], Tool):
    """Measures every outermost operator: how often it runs, how long it takes, and how many bytes it outputs::

        profile = Profile()
        with amanda.apply(profile):
            model(x)
        rich.print(profile.table("module", top=10))
        profile.export_chrome_trace("trace.json")  # for https://ui.perfetto.dev

    *Time* is wall time in nanoseconds on the host, from just before the operator is called until it returns. On the CPU
    this is the operator's work plus up to a microsecond of this tool's; on CUDA it is the time to launch its kernels.
    Times of threads are summed. If several threads run Python, waiting for the interpreter lock is included. So is the
    copy on which the first run of an in-place operator works, if autograd records.

    *Output bytes* are elements times element size of the returned tensors, even if they share memory: a view counts
    like a copy, a sparse tensor like a dense one. Anything that is not a tensor counts as zero. A tensor whose size
    cannot be read also counts as zero, and in `skipped`.

    An operator that raises is not counted. Counts accumulate over all scopes and threads in which the tool is used.

    Rows are by "op" (the default: operator type), "module", "line" or "id" (one operator at its place in the program),
    longest time first. A module's row covers the operators that it calls itself, not those of its submodules. See
    `Results` for `rows`, `table`, `to_pandas` and `reset`.

    Arguments:
        max_events: how many runs to keep for the trace, about 40 bytes each: the first ones. Further runs are counted
            in `dropped_events`. Tables include every run.
        skip: leave out so many first executions of each operator, because they take longer: PyTorch allocates memory and
            chooses algorithms, and this tool finds out what there is. Counted for each place in the program, since the
            tool was made or reset: with 1, a layer loses its first run, and an operator in a loop its first pass, not the
            whole first step. What is left out is in no table and no trace, and counted in `left_out`.

    Raises:
        TypeError: `skip` is not an integer.
        ValueError: `skip` is negative.
    """

    _speaker = "profile"
    _measures = (
        number_column("calls", "calls"),
        number_column("total ms", "total_ns", 1e6, 2),
        number_column("mean µs", "mean_ns", 1e3, 1),
        number_column("median µs", "median_ns", 1e3, 1),
        Column("share", lambda row: f"{row.share:.1%}", field="share"),
        number_column("output MB", "output_bytes", 1e6, 2),
    )
    _fields = fields_of(Row, without=PLACE_FIELDS, mean_ns="float64")
    _groupings = {
        "op": Grouping([name_column("op"), *_measures], _fields, lambda rows: _sum(rows)),
        "module": Grouping([name_column("module"), *_measures], _fields, lambda rows: _sum(rows)),
        "line": Grouping([name_column("line"), *_measures], _fields, lambda rows: _sum(rows)),
        "id": Grouping([name_column("id"), *_measures], fields_of(Row, mean_ns="float64"), lambda rows: _sum(rows)),
    }

    def __init__(self, max_events: int = 100_000, *, skip: int = 0) -> None:
        super().__init__()
        try:
            negative = operator.index(skip) < 0
        except TypeError:
            raise TypeError(f"{SKIP_IS}, 0 or more, got {skip!r}") from None
        if negative:
            raise ValueError(f"{SKIP_IS}, 0 or more, got {skip!r}")
        self._skips = _reading.Skips("profile")
        self._max_events = max_events
        self._skip = skip
        self._recorder = _tools.ProfileRecorder(max_events, skip)
        self._numbers: dict[int | None, int] = {}  # of the places, which the recorder knows by number
        self._places: list[Place] = []
        self._lock = _fork.lock()  # guards these two
        self.add_inst_for_op(self._analyze)

    # ---- measuring --------------------------------------------------------------------------------------------------

    def _analyze(self, context: OpContext) -> None:
        place = self._number(context)
        native = natively(context)
        if native is None:
            context.insert_before_op(self._start, inputs=[], with_run=True)
            context.insert_after_op(self._stop, outputs=[], with_run=True)
            context.insert_after_op(self._record, with_run=True, place=place)
            return
        stop = self._recorder.stop(place, native.output_bytes())
        context.insert_before_op(_core.NativeRoutine(self._recorder.start(), self._start), inputs=[])
        context.insert_after_op(_core.NativeRoutine(stop, self._record_measured), place=place)

    def _number(self, context: OpContext) -> int:
        with self._lock:
            number = self._numbers.setdefault(context.op_id, len(self._places))
            if number == len(self._places):
                self._places.append(Place.of(context))
            return number

    def _start(self, run: dict[str, int]) -> None:
        run["start"] = time.perf_counter_ns()

    def _stop(self, run: dict[str, int]) -> None:
        run["stop"] = time.perf_counter_ns()  # before any access to the outputs

    def _record(self, *outputs: Any, place: int, run: dict[str, int]) -> None:
        self._add(place, run["start"], run["stop"] - run["start"], outputs)

    def _record_measured(self, *outputs: Any, place: int) -> None:
        self._add(place, *self._recorder.measured(), outputs)

    def _add(self, place: int, start: int, duration: int, outputs: Sequence[Any]) -> None:
        if not self._recorder.knows_thread():
            self._recorder.name_thread(threading.get_native_id(), threading.current_thread().name)
        self._recorder.add(place, start, duration, sum(map(self._bytes_of, outputs)))

    def _bytes_of(self, output: Any) -> int:
        if isinstance(output, (list, tuple)):
            return sum(map(self._bytes_of, output))
        return self._skips.size(output) or 0 if arrays_of(output) is not None else 0

    # ---- reporting --------------------------------------------------------------------------------------------------

    @property
    def skipped(self) -> dict[str, int]:
        """How many outputs had a size that could not be read, by reason."""
        return self._skips.counts()

    @property
    def left_out(self) -> int:
        """How many first executions `skip` has left out."""
        return self._recorder.left_out()

    @property
    def dropped_events(self) -> int:
        """How many runs are not in the trace."""
        return self._recorder.dropped()

    def reset(self) -> None:
        self._recorder.reset()
        self._skips.reset()

    def _rows(self, by: GroupBy) -> list[Row]:
        groups: dict[Place, list[_Measured]] = {}
        recorded, all_ns = self._recorder.rows(), 0
        for number, count, total_ns, buckets, output_bytes in recorded:
            measured = _Measured(self._places[number], Durations(count, total_ns, dict(buckets)), output_bytes)
            groups.setdefault(measured.place.group(by), []).append(measured)
            all_ns += total_ns
        rows = [_row(place, group, all_ns) for place, group in groups.items()]
        return sorted(rows, key=lambda row: -row.total_ns)

    def _remarks(self, by: GroupBy) -> list[str]:
        first = "first execution" if self._skip == 1 else f"first {self._skip} executions"
        left_out = f"left out: the {first} of each operator, {self.left_out} in all"
        return [left_out if self.left_out else "", self._skips.caption()]

    def export_chrome_trace(self, path: str | os.PathLike[str]) -> None:
        """Writes the kept runs as a JSON file for Perfetto and chrome://tracing: one "X" event each, with times in
        microseconds of `time.perf_counter`. The process name and the log report dropped runs."""
        events, threads, dropped = self._recorder.trace()
        process = "amanda.tools.profile"
        if dropped:
            process += f" ({dropped} later runs dropped)"
            held = f"{os.fspath(path)} has the first {len(events)} runs, and {dropped} more were dropped"
            logging.getLogger("amanda").warning("[profile] %s; raise Profile(max_events=%d)", held, self._max_events)
        pid = os.getpid()
        trace = [chrome_trace.metadata("process_name", pid, 0, name=process)]
        trace += [chrome_trace.metadata("thread_name", pid, thread, name=name) for thread, name in threads.items()]
        trace += [_Event(self._places[place], *measured).in_trace(pid) for place, *measured in events]
        chrome_trace.write(path, trace, otherData={"dropped_events": dropped})


@dataclasses.dataclass(eq=False)
class _Measured:
    """The runs of one operator at its place in the program."""

    place: Place
    durations: Durations
    output_bytes: int


class _Event(NamedTuple):
    place: Place
    thread: int
    start_ns: int
    duration_ns: int
    output_bytes: int

    def in_trace(self, pid: int) -> chrome_trace.Event:
        return chrome_trace.slice_of(
            self.place.name,
            "operator",
            pid,
            self.thread,
            self.start_ns,
            self.start_ns + self.duration_ns,
            op=self.place.name,
            module_path=self.place.module_path,
            source=self.place.source,
            output_bytes=self.output_bytes,
        )


def _row(place: Place, group: Sequence[_Measured], all_ns: int) -> Row:
    durations = Durations.all_of(measured.durations for measured in group)
    return Row(
        name=place.name,
        calls=durations.count,
        total_ns=durations.total_ns,
        median_ns=durations.median_ns(),
        output_bytes=sum(measured.output_bytes for measured in group),
        share=durations.total_ns / all_ns if all_ns else 0.0,
        op_id=place.op_id,
        module_path=place.module_path,
        source=place.source,
    )


def _sum(rows: Sequence[Row]) -> Row:
    """The total of a table, without a median."""
    return Row(
        name="",
        calls=sum(row.calls for row in rows),
        total_ns=sum(row.total_ns for row in rows),
        median_ns=math.nan,
        output_bytes=sum(row.output_bytes for row in rows),
        share=sum(row.share for row in rows),
    )
