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

from amanda import _fork
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
        max_events: how many runs to keep for the trace, about 200 bytes each: the first ones. Further runs are counted
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
        self.dropped_events = 0
        self._skips = _reading.Skips("profile")
        self._max_events = max_events
        self._skip = skip
        self._left_out = 0
        self._events: list[_Event] = []
        self._threads: dict[int, str] = {}
        self._measured: dict[int | None, _Measured] = {}
        self._lock = _fork.lock()  # guards everything above
        self.add_inst_for_op(self._analyze)

    # ---- measuring --------------------------------------------------------------------------------------------------

    def _analyze(self, context: OpContext) -> None:
        place = Place.of(context)
        context.insert_before_op(self._start, inputs=[], with_run=True)
        context.insert_after_op(self._stop, outputs=[], with_run=True)
        context.insert_after_op(self._record, with_run=True, place=place)

    def _start(self, run: dict[str, int]) -> None:
        run["start"] = time.perf_counter_ns()

    def _stop(self, run: dict[str, int]) -> None:
        run["stop"] = time.perf_counter_ns()  # before any access to the outputs

    def _record(self, *outputs: Any, place: Place, run: dict[str, int]) -> None:
        start, duration = run["start"], run["stop"] - run["start"]
        size = sum(map(self._bytes_of, outputs))
        thread = threading.get_native_id()
        with self._lock:
            measured = self._measured.get(place.op_id)
            if measured is None:
                measured = self._measured[place.op_id] = _Measured(place)
            if measured.left_out < self._skip:
                measured.left_out += 1
                self._left_out += 1
                return
            measured.durations.add(duration)
            measured.output_bytes += size
            if thread not in self._threads:
                self._threads[thread] = threading.current_thread().name
            if len(self._events) < self._max_events:
                self._events.append(_Event(place, thread, start, duration, size))
            else:
                self.dropped_events += 1

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
        return self._left_out

    def reset(self) -> None:
        with self._lock:
            self.dropped_events = self._left_out = 0
            self._events.clear()
            self._threads.clear()
            self._measured.clear()
        self._skips.reset()

    def _rows(self, by: GroupBy) -> list[Row]:
        groups: dict[Place, list[_Measured]] = {}
        with self._lock:
            ran = [measured for measured in self._measured.values() if measured.durations.count]
            for measured in ran:
                groups.setdefault(measured.place.group(by), []).append(measured)
            all_ns = sum(measured.durations.total_ns for measured in ran)
            rows = [_row(place, group, all_ns) for place, group in groups.items()]
        return sorted(rows, key=lambda row: -row.total_ns)

    def _remarks(self, by: GroupBy) -> list[str]:
        first = "first execution" if self._skip == 1 else f"first {self._skip} executions"
        left_out = f"left out: the {first} of each operator, {self._left_out} in all"
        return [left_out if self._left_out else "", self._skips.caption()]

    def export_chrome_trace(self, path: str | os.PathLike[str]) -> None:
        """Writes the kept runs as a JSON file for Perfetto and chrome://tracing: one "X" event each, with times in
        microseconds of `time.perf_counter`. The process name and the log report dropped runs."""
        with self._lock:
            events, threads, dropped = list(self._events), dict(self._threads), self.dropped_events
        process = "amanda.tools.profile"
        if dropped:
            process += f" ({dropped} later runs dropped)"
            held = f"{os.fspath(path)} has the first {len(events)} runs, and {dropped} more were dropped"
            logging.getLogger("amanda").warning("[profile] %s; raise Profile(max_events=%d)", held, self._max_events)
        pid = os.getpid()
        trace = [chrome_trace.metadata("process_name", pid, 0, name=process)]
        trace += [chrome_trace.metadata("thread_name", pid, thread, name=name) for thread, name in threads.items()]
        trace += [event.in_trace(pid) for event in events]
        chrome_trace.write(path, trace, otherData={"dropped_events": dropped})


@dataclasses.dataclass(eq=False)
class _Measured:
    """The runs of one operator at its place in the program."""

    place: Place
    left_out: int = 0
    durations: Durations = dataclasses.field(default_factory=Durations)
    output_bytes: int = 0


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
