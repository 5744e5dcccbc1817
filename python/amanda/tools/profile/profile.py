"""Profile: the time and the output size of every operator, forward and backward."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from amanda import OpContext, Tool
from amanda.toolkit import AnnotatedResults, Column, Place, Skips, TellsSkips, arrays_of, locks, name_column
from amanda.toolkit.arguments import whole_number
from amanda.toolkit.durations import Durations
from amanda.toolkit.figures import Section
from amanda.toolkit.frames import user_line
from amanda.toolkit.native import NativeRoutine, natively, tools

from . import figures, trace
from .answer import answer_of
from .rows import (
    BOTH_COLUMNS,
    BOTH_LISTING_COLUMNS,
    FORWARD_COLUMNS,
    GROUPINGS,
    LISTING_COLUMNS,
    GroupBy,
    Measured,
    Row,
    costs_of,
    row_of,
)
from .trace import Site

SKIP_IS = "[profile] skip= is how many executions of each operator to leave out"


class Profile(TellsSkips, AnnotatedResults[Row, GroupBy], Tool):
    """Measures every outermost operator: how often it runs, how long it takes, and how many bytes it outputs::

        profile = Profile(backward=True)
        with amanda.apply(profile):
            model(x).sum().backward()
        rich.print(profile.table("module", top=10))
        rich.print(profile.annotate())  # the source code, with what each line costs
        profile.export_chrome_trace("trace.json")  # for https://ui.perfetto.dev

    *Time* is wall time in nanoseconds on the host, from just before the operator is called until it returns. On the CPU
    this is the operator's work plus up to a microsecond of this tool's; on CUDA it is the time to launch its kernels.
    Times of threads are summed. If several threads run Python, waiting for the interpreter lock is included. So is the
    copy on which the first run of an in-place operator works, if autograd records.

    *Output bytes* are elements times element size of the returned tensors, even if they share memory: a view counts
    like a copy, a sparse tensor like a dense one. Anything that is not a tensor counts as zero. A tensor whose size
    cannot be read also counts as zero, and in `skipped`.

    An operator that raises is not counted. Counts accumulate over all scopes and threads in which the tool is used.

    Rows are by "op" (the default: operator type), "module", "line", "user_line" (the innermost line that is not in an
    installed package) or "id" (one operator at its place in the program), longest time first. A module's row covers the
    operators that it calls itself, not those of its submodules. See
    `Results` for `rows`, `table`, `to_pandas`, `to_csv`, `to_json`, `to_parquet` and `reset`, and `AnnotatedResults` for
    `annotate` and `write_html`.

    With ``backward=True`` backward operators are measured, too, and count for the operator, the module and the line that
    created them: see the fields of `Row`. An operator may run inside another one, as when a checkpoint recomputes its
    region inside a backward operator. Then the outer one's time excludes the inner one's, which counts as a forward run
    of its own place. Sums count no time twice. The Python code of a `torch.autograd.Function` in its `backward` counts
    for the line that called the function.

    Arguments:
        backward: measure backward operators, too. Without it they cost nothing.
        max_events: the number of runs to keep for the trace, about 40 bytes each: the first ones. Further runs are
            counted in `dropped_events`. Tables include every run.
        skip: leave out this number of first executions of each operator. They take longer: PyTorch allocates memory and
            chooses algorithms, and this tool analyzes operators. They are counted for each place in the program, since
            the tool was made or reset. With 1, a layer loses its first run, and an operator in a loop its first pass,
            not the whole first step. Executions that are left out are in no table and no trace, and are counted in
            `left_out`.

    Raises:
        TypeError: `skip` is not an integer.
        ValueError: `skip` is negative.
    """

    _speaker = "profile"
    _groupings = GROUPINGS

    def __init__(self, max_events: int = 100_000, *, skip: int = 0, backward: bool = False) -> None:
        super().__init__()
        whole_number(skip, f"{SKIP_IS}, 0 or more, got {skip!r}")
        self._skips = Skips("profile")
        self._max_events = max_events
        self._skip = skip
        self._backward = bool(backward)
        self._recorder = tools.ProfileRecorder(max_events, skip)
        # By op_id: what a checkpoint recomputes has the line of its first run.
        self._forward: dict[int | None, Site] = {}
        self._numbers: dict[tuple[int | None, int | None], int] = {}  # of the sites, which the recorder knows by number
        self._sites: list[Site] = []
        self._lock = locks.lock()  # guards these three
        self.add_inst_for_op(self._analyze)
        if self._backward:
            self.add_inst_for_op(self._analyze_backward, backward=True)

    # ---- measuring --------------------------------------------------------------------------------------------------

    def _analyze(self, context: OpContext) -> None:
        site = self._number(context)
        native = natively(context)
        if native is None:
            context.insert_before_op(self._start, inputs=[], with_run=True, site=site)
            context.insert_after_op(self._stop, outputs=[], with_run=True, site=site)
            context.insert_after_op(self._record, with_run=True, site=site)
            return
        before, after = self._routines(site, native)
        context.insert_before_op(before, inputs=[])
        context.insert_after_op(after, site=site)

    def _analyze_backward(self, context: OpContext) -> None:
        site = self._number(context)
        native = natively(context)
        if native is None:
            context.insert_before_backward_op(self._start, grad_outputs=[], with_run=True, site=site)
            context.insert_after_backward_op(self._stop, grad_inputs=[], with_run=True, site=site)
            context.insert_after_backward_op(self._record, with_run=True, site=site)
            return
        before, after = self._routines(site, native)
        context.insert_before_backward_op(before, grad_outputs=[])
        context.insert_after_backward_op(after, site=site)

    def _routines(self, site: int, native: Any) -> tuple[NativeRoutine, NativeRoutine]:
        start = self._recorder.start_nested() if self._backward else self._recorder.start()
        stop = self._recorder.stop(site, native.output_bytes())
        return NativeRoutine(start, self._start), NativeRoutine(stop, self._record_measured)

    def _number(self, context: OpContext) -> int:
        node = context.get_backward_op()
        with self._lock:
            if context.op_id not in self._forward:
                line = context.source if node is not None else user_line(context)
                self._forward[context.op_id] = Site(Place.of(context), line, "")
            number = self._numbers.setdefault((context.op_id, context.get_backward_op_id()), len(self._sites))
            if number == len(self._sites):
                backward_op = node.__name__ if node is not None else ""
                self._sites.append(self._forward[context.op_id]._replace(backward_op=backward_op))
            return number

    # The runs of an operator and of its backward operators share one dictionary.

    def _start(self, run: dict[Any, int], site: int) -> None:
        run["start", site] = time.perf_counter_ns()

    def _stop(self, run: dict[Any, int], site: int) -> None:
        run["stop", site] = time.perf_counter_ns()  # before any access to the outputs

    def _record(self, *outputs: Any, site: int, run: dict[Any, int]) -> None:
        start = run["start", site]
        self._add(site, start, run["stop", site] - start, self._recorder.ALONE, outputs)

    def _record_measured(self, *outputs: Any, site: int) -> None:
        self._add(site, *self._recorder.measured(), outputs)

    def _add(self, site: int, start: int, duration: int, finished_before: int, outputs: Sequence[Any]) -> None:
        if not self._recorder.knows_thread():
            self._recorder.name_thread(threading.get_native_id(), threading.current_thread().name)
        self._recorder.add(site, start, duration, finished_before, sum(map(self._bytes_of, outputs)))

    def _bytes_of(self, output: Any) -> int:
        if isinstance(output, (list, tuple)):
            return sum(map(self._bytes_of, output))
        return self._skips.size(output) or 0 if arrays_of(output) is not None else 0

    # ---- reporting --------------------------------------------------------------------------------------------------

    @property
    def left_out(self) -> int:
        """The number of first executions that `skip` has left out."""
        return self._recorder.left_out()

    @property
    def dropped_events(self) -> int:
        """The number of runs that are not in the trace."""
        return self._recorder.dropped()

    def reset(self) -> None:
        self.reset_evidence()
        self._recorder.reset()
        self._skips.reset()

    def inside(self, line: str, by: GroupBy = "line") -> list[Row]:
        """The rows of the operators that a line of the program called, itself or in libraries, the longest time first.

        Arguments:
            line: a name of a row by "user_line".
            by: as in `rows`.

        Raises:
            ValueError: there is no such grouping.
        """
        return self._rows_of(self._checked(by), lambda site: site.user_line == line)

    def answer(self) -> str:
        lines = self.rows("user_line")
        first = lines[0].name if lines else ""
        return answer_of(lines, self.inside(first, "id"), self.inside(first))

    def spans(self, thread: int) -> list[tuple[int, int]]:
        """The begin and the end of each kept run of an operator on this thread, in order, in nanoseconds of
        `time.perf_counter_ns`; `dropped_events` says whether there were more.

        Arguments:
            thread: as `threading.get_native_id` gives it.
        """
        events, *_ = self._recorder.trace()
        return sorted((start, start + duration) for _, of, start, duration, _ in events if of == thread)

    def _rows(self, by: GroupBy) -> list[Row]:
        return self._rows_of(by, lambda site: True)

    def _rows_of(self, by: GroupBy, counts: Callable[[Site], bool]) -> list[Row]:
        groups: dict[Place, list[Measured]] = {}
        recorded, all_ns = self._recorder.rows(), 0
        for number, count, total_ns, buckets, output_bytes in recorded:
            site = self._sites[number]
            all_ns += total_ns
            if not counts(site):
                continue
            measured = Measured(bool(site.backward_op), Durations(count, total_ns, dict(buckets)), output_bytes)
            groups.setdefault(site.group(by), []).append(measured)
        found = [row_of(place, group, all_ns) for place, group in groups.items()]
        return sorted(found, key=lambda row: -row.total_ns)

    def _columns(self, by: GroupBy, rows: Sequence[Row]) -> Sequence[Column]:
        return [name_column(by), *(BOTH_COLUMNS if self._backward else FORWARD_COLUMNS)]

    def _remarks(self, by: GroupBy) -> list[str]:
        first = "first execution" if self._skip == 1 else f"first {self._skip} executions"
        left_out = f"left out: the {first} of each operator, {self.left_out} in all"
        return [left_out if self.left_out else "", self._skips.caption()]

    def _user_lines(self) -> Sequence[Row]:
        return self.rows("user_line")

    def _charts(self) -> list[Section]:
        return [figures.modules(self.rows("id")), figures.timeline(self._recorder.trace(), self._sites)]

    def _listing_columns(self, lines: Sequence[Row]) -> Sequence[Column]:
        return BOTH_LISTING_COLUMNS if self._backward else LISTING_COLUMNS

    def _costs(self, lines: Sequence[Row], all_lines: Sequence[Row]) -> str:
        return costs_of(lines, self._backward)

    def export_chrome_trace(self, path: str | os.PathLike[str]) -> None:
        """Writes the kept runs as a JSON file for Perfetto and chrome://tracing: one "X" event each, with times in
        microseconds of `time.perf_counter`. The process name and the log report dropped runs."""
        trace.write(path, self._recorder.trace(), self._sites, self._max_events)
