"""Profile: the time and the output size of every operator, as tables and as a trace."""

from __future__ import annotations

import collections
import dataclasses
import logging
import os
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch

from amanda import _fork
from amanda.drivers.torch import port
from amanda.op_context import OpContext
from amanda.reports import chrome_trace
from amanda.reports.rich_table import Column, rich_table
from amanda.tool import Tool
from amanda.tools import _reading

if TYPE_CHECKING:
    import rich.table

GroupBy = Literal["op", "module"]


@dataclasses.dataclass(frozen=True)
class Row:
    """All runs of one operator type, or of all operators of one module."""

    name: str  # "aten::conv2d", or a module path; "" for operators outside modules
    calls: int
    total_ns: int
    output_bytes: int  # of all runs together
    share: float  # of the time of all operators, 0 to 1

    @property
    def mean_ns(self) -> float:
        """The mean time of a call, in nanoseconds."""
        return self.total_ns / self.calls


class Profile(Tool):
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

    Arguments:
        max_events: how many runs to keep for the trace, about 200 bytes each: the first ones. Further runs are counted
            in `dropped_events`. Tables include every run.
    """

    def __init__(self, max_events: int = 100_000) -> None:
        super().__init__()
        self.dropped_events = 0
        self._skips = _reading.Skips("profile")
        self._max_events = max_events
        self._events: list[_Event] = []
        self._threads: dict[int, str] = {}
        self._places: dict[tuple[str, str, str], _Place] = {}
        self._lock = _fork.lock()  # guards everything above
        self.add_inst_for_op(self._analyze)

    # ---- measuring --------------------------------------------------------------------------------------------------

    def _analyze(self, context: OpContext) -> None:
        key = (context.op.name, context.module_path, context.source)
        with self._lock:
            place = self._places.setdefault(key, _Place(*key))
        context.insert_before_op(self._start, inputs=[], with_run=True)
        context.insert_after_op(self._stop, outputs=[], with_run=True)
        context.insert_after_op(self._record, with_run=True, place=place)

    def _start(self, run: dict[str, int]) -> None:
        run["start"] = time.perf_counter_ns()

    def _stop(self, run: dict[str, int]) -> None:
        run["stop"] = time.perf_counter_ns()  # before any access to the outputs

    def _record(self, *outputs: Any, place: _Place, run: dict[str, int]) -> None:
        start, duration = run["start"], run["stop"] - run["start"]
        with port.WithoutTorchFunction():
            size = sum(map(self._bytes_of, outputs))
        thread = threading.get_native_id()
        with self._lock:
            place.calls += 1
            place.total_ns += duration
            place.output_bytes += size
            if thread not in self._threads:
                self._threads[thread] = threading.current_thread().name
            if len(self._events) < self._max_events:
                self._events.append(_Event(place, thread, start, duration, size))
            else:
                self.dropped_events += 1

    def _bytes_of(self, output: Any) -> int:
        if isinstance(output, (list, tuple)):
            return sum(map(self._bytes_of, output))
        return self._skips.size(output) or 0 if isinstance(output, torch.Tensor) else 0

    # ---- reporting --------------------------------------------------------------------------------------------------

    @property
    def skipped(self) -> dict[str, int]:
        """How many outputs had a size that could not be read, by reason."""
        return self._skips.counts()

    def rows(self, by: GroupBy = "op") -> list[Row]:
        """The measurements so far, per operator type or per module path; longest time first.

        A module's row covers the operators that it calls itself, not those of its submodules.

        Raises:
            ValueError: `by` is neither "op" nor "module".
        """
        if by not in ("op", "module"):
            raise ValueError(f'[profile] rows and tables are by "op" or by "module", got {by!r}')
        with self._lock:
            places = [dataclasses.replace(place) for place in self._places.values() if place.calls]
        groups = collections.defaultdict(list)
        for place in places:
            groups[place.op if by == "op" else place.module].append(place)
        all_ns = sum(place.total_ns for place in places)
        return sorted((_sum(name, group, all_ns) for name, group in groups.items()), key=lambda row: -row.total_ns)

    def table(self, by: GroupBy = "op", top: int | None = None) -> rich.table.Table:
        """`rows` as a table for `rich.print`, with one line for the rows beyond `top` and one for the total.

        Raises:
            ImportError: rich is not installed.
            ValueError: `by` is neither "op" nor "module".
        """
        rows = self.rows(by)
        all_ns = sum(row.total_ns for row in rows)
        columns = [Column(by, lambda row: row.name or "(no module)", left=True, folds=True), *_COLUMNS]
        return rich_table(
            "profile",
            columns,
            rows,
            top=top,
            caption=self._skips.caption(),
            summed=lambda some: _sum("", some, all_ns),
        )

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
class _Place:
    """The totals of one operator at one line of one module."""

    op: str
    module: str
    source: str
    calls: int = 0
    total_ns: int = 0
    output_bytes: int = 0


class _Event(NamedTuple):
    place: _Place
    thread: int
    start_ns: int
    duration_ns: int
    output_bytes: int

    def in_trace(self, pid: int) -> chrome_trace.Event:
        return chrome_trace.slice_of(
            self.place.op,
            "operator",
            pid,
            self.thread,
            self.start_ns,
            self.start_ns + self.duration_ns,
            op=self.place.op,
            module_path=self.place.module,
            source=self.place.source,
            output_bytes=self.output_bytes,
        )


def _sum(name: str, parts: Sequence[_Place | Row], all_ns: int) -> Row:
    total_ns = sum(part.total_ns for part in parts)
    return Row(
        name=name,
        calls=sum(part.calls for part in parts),
        total_ns=total_ns,
        output_bytes=sum(part.output_bytes for part in parts),
        share=total_ns / all_ns if all_ns else 0.0,
    )


_COLUMNS = (
    Column("calls", lambda row: f"{row.calls}"),
    Column("total ms", lambda row: f"{row.total_ns / 1e6:.2f}"),
    Column("mean µs", lambda row: f"{row.mean_ns / 1e3:.1f}"),
    Column("share", lambda row: f"{row.share:.1%}"),
    Column("output MB", lambda row: f"{row.output_bytes / 1e6:.2f}"),
)
