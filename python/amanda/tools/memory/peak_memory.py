"""PeakMemory: what is in memory when most of it is in use."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from amanda import Error, OpContext, Tool
from amanda.toolkit import NativeRoutine, Place, Results, Skips, chrome_trace, eager_only, frameworks, locks, native
from amanda.toolkit.figures import Curve
from amanda.toolkit.frames import user_line

from .answer import answer_of
from .growth import Growth
from .memory_growth import MemoryGrowth
from .optimizer_steps import OptimizerSteps
from .rows import GRAPHS, GROUPINGS, GroupBy, Held, Kind, Row, rows_of
from .samples import Samples
from .site import OUTSIDE, Site
from .snapshot import MemorySnapshot
from .values import UNKNOWN, Values

if TYPE_CHECKING:
    import torch

    from .owners import Owned

UNHEARD = "it must know which operator runs when PyTorch's allocators hand out memory"
OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "not enough memory")


class _Block(NamedTuple):
    """A block of memory, as `torch_tools.MemoryRecorder.blocks` returns it."""

    serial: int
    bytes: int
    made_by: int
    made_in_backward: bool
    is_freed: bool
    freed_by: int
    freed_in_backward: bool
    mark: int


class PeakMemory(Results[Row, GroupBy], Tool):
    """Lists the tensors in memory at the peak: the operator, module and line that made them, and what kept them::

        memory = PeakMemory()
        with amanda.apply(memory):
            train_step()
        print(memory.table())  # by kind: parameters, gradients, saved activations, ...
        print(memory.table("line", top=10))

    PyTorch's allocators notify it of memory that they hand out and get back on the thread that enters the scope, and in
    backward passes that it starts, on the CPU and on CUDA. The peak of each device is a moment of its own. Memory that
    was allocated before the scope is not known: make the model inside it to see its parameters. On CUDA, memory that
    the caching allocator keeps without using it is not counted.

    Rows are by "kind" (the default), "id", "op", "module" or "line" of the operator that made it, largest first. See `Row`
    for the kinds, and `Results` for `rows`, `table`, `to_pandas` and `reset`.

    TensorFlow reports no allocations. There it counts values: those of eager tensors and variables, and results of
    operators in graphs and functions. Such a result is there from its operator to the last one that takes it, in the
    order of the program. `answer` says what is not counted. There is no `timeline` and no `at_error`.

    `torch.profiler` is notified of memory at the same place, so it cannot be on at the same time.

    Arguments:
        model: the model whose parameters, gradients and buffers have names. By default, all modules that exist when the
            scope is left.
        growth: also find out what each step leaves behind, and who keeps it: see `growth`. At the ends of some steps it
            looks at all objects of the program, 10 seconds in all, or a quarter of the time of a long program.

    Attributes:
        growth: a `MemoryGrowth`; None without the argument.

    Raises:
        amanda.Error: when a scope is entered, and PyTorch's profiler is on, or another PeakMemory.
    """

    needs_eager = UNHEARD
    leaves_compiled_out = True
    _speaker = "memory"
    _alone = "PyTorch's allocators report to one listener"
    _groupings = GROUPINGS

    def __init__(self, model: torch.nn.Module | None = None, *, growth: bool = False) -> None:
        self._has_torch = bool(importlib.util.find_spec("torch")) or not importlib.util.find_spec("tensorflow")
        if self._has_torch:
            importlib.import_module("torch")  # whose allocators report memory
        super().__init__()
        self._model = model
        self._skips = Skips("memory")
        self._lock = locks.lock()  # guards the next fields
        self._sites: list[Site] = []
        self._numbers: dict[tuple[int | None, int | None], int] = {}
        self._marks: dict[tuple[Kind, str, str], int] = {}  # by kind, name and more: see owners.Owned
        self._recorder: Any = None
        self._watch: Any = None  # of optimizers, while a thread is in a scope
        self._at_error: MemorySnapshot | None = None
        self._growth = Growth()
        self._values = Values(self._new_site, self._site, self._on_values)  # of TensorFlow
        self._samples = self._make_samples() if growth else None
        self.growth = None if self._samples is None else MemoryGrowth(self._samples, self._site)
        self.add_inst_for_op(self._analyze)
        self.add_inst_for_op(self._analyze_backward, backward=True)

    def _make_samples(self) -> Samples:
        if not self._has_torch:
            return Samples(
                lambda: self._values, self._values.blocks, OptimizerSteps, self._values.traces, self._values.written
            )
        from .steps import Steps  # here: it imports torch

        return Samples(lambda: self._recorder, lambda: self._blocks(at_peak=False), Steps)

    # ---- measuring --------------------------------------------------------------------------------------------------

    def on_enter(self) -> None:
        self._values.begin()
        if not self._has_torch:
            return
        if self._recorder is None:
            self._recorder = native.torch_tools.MemoryRecorder()
        from . import owners

        if self._recorder.listeners() == 0 and self._devices():  # what was freed since the last scope is not known
            self._recorder.forget_all_but(owners.tensors())
        if not self._recorder.listen():
            raise Error(
                "[memory] another listener hears of memory on this thread, and PyTorch has place for one: its profiler, or "
                "another PeakMemory; leave that before this scope is entered"
            )
        with self._lock:
            self._at_error = None
            if self._watch is None:
                self._watch = owners.Watch(self._note, self._on_step)

    def on_exit(self, error: BaseException | None) -> None:
        self._values.end()
        if not self._has_torch:
            return
        running = self._recorder.running()
        self._recorder.unlisten()
        with self._lock:
            if self._watch is not None and self._recorder.listeners() == 0:
                self._watch.remove()
                self._watch = None
        from . import graphs, owners

        self._note(graphs.saved_by(owners.tensors()))  # first: parameters, too, are saved
        self._note(owners.modules(self._model))
        if error is not None and _is_out_of_memory(error):
            asked = str(self._sites[running]) if running >= 0 else "the program"
            self._at_error = MemorySnapshot(self._held(at_peak=False), f"when {asked} ran out of memory")

    def _analyze(self, context: OpContext) -> None:
        if frameworks.is_tensorflow(context):
            self._values.analyze(context, self._number(context))
            return
        if eager_only.leaves_out(context, self._skips, self.needs_eager):
            return
        enter, leave = self._routines(context)
        context.insert_before_op(enter, inputs=[])
        context.insert_after_op(leave, outputs=[])
        if self._samples is not None and self._samples.steps.marks():
            context.insert_before_op(self._samples.steps.on_call, inputs=[])

    def _analyze_backward(self, context: OpContext) -> None:
        if frameworks.is_tensorflow(context):
            self._values.analyze(context, self._number(context))
            return
        if eager_only.leaves_out(context, self._skips, self.needs_eager):
            return
        enter, leave = self._routines(context)
        context.insert_before_backward_op(enter, grad_outputs=[])
        context.insert_after_backward_op(leave, grad_inputs=[])

    def _routines(self, context: OpContext) -> tuple[NativeRoutine, NativeRoutine]:
        site = self._number(context)
        return (
            native.always(self._recorder.enter(site)),
            native.always(self._recorder.leave(site)),
        )

    def _number(self, context: OpContext) -> int:
        node = context.get_backward_op()
        of_torch = self._samples is not None and frameworks.is_torch(context)
        line = user_line(context) if of_torch and node is None else ""
        with self._lock:
            number = self._numbers.setdefault((context.op_id, context.get_backward_op_id()), len(self._sites))
            if number == len(self._sites):
                self._sites.append(Site(Place.of(context), node.__name__ if node is not None else "", line))
            return number

    def _new_site(self, site: Site) -> int:
        with self._lock:
            self._sites.append(site)
            return len(self._sites) - 1

    def _on_values(self, optimizer: Any, live_bytes: int) -> None:
        """An optimizer of TensorFlow has stepped."""
        self._growth.add(live_bytes)
        if self._samples is not None and not self._has_torch:
            self._samples.steps.on_optimizer(optimizer)

    def _on_step(self, optimizer: Any) -> None:
        self._growth.add(sum(live for _, _, live, *_ in self._devices()))
        if self._samples is not None:
            self._samples.steps.on_optimizer(optimizer)

    def _note(self, owned: Iterable[Owned]) -> None:
        for one in owned:
            with self._lock:
                mark = self._marks.setdefault((one.kind, one.name, one.what), len(self._marks) + 1)
            self._recorder.mark(one.tensor, mark)

    # ---- reporting --------------------------------------------------------------------------------------------------

    @property
    def skipped(self) -> dict[str, int]:
        """The number of operators that were left out, by reason. The memory that they use is made outside operators."""
        return self._skips.counts()

    @property
    def peak_bytes(self) -> dict[str, int]:
        """The most that was in use at one time, of what was allocated in the scope, by device."""
        return {device: peak for device, peak, *_ in self._devices()} | self._values.peak_bytes()

    @property
    def live_bytes(self) -> dict[str, int]:
        """The bytes in use now that were allocated in the scope, by device."""
        return {device: live for device, _, live, *_ in self._devices()} | self._values.live_bytes()

    @property
    def allocated_bytes(self) -> dict[str, int]:
        """All bytes that were allocated in the scope, by device, also those that have been freed."""
        found = {device: allocated for device, _, _, _, allocated, _ in self._devices()}
        return found | self._values.allocated_bytes()

    @property
    def at_error(self) -> MemorySnapshot | None:
        """The memory in use when an operator failed to get more, and the program left the scope with its error."""
        return self._at_error

    def timeline(self, device: str = "cpu") -> list[tuple[float, int]]:
        """Bytes in use over time: seconds since the first allocation, and the most until the next point; 4,096 at most."""
        points = self._recorder.timeline(device) if self._recorder is not None else []
        return [((ns - points[0][0]) / 1e9, size) for ns, size in points]

    def export_chrome_trace(self, path: str | os.PathLike[str]) -> None:
        """Writes the bytes in use over time as counters for Perfetto, with times of `time.perf_counter`.

        Raises:
            OSError: the file cannot be written.
        """
        pid = os.getpid()
        events = [chrome_trace.metadata("process_name", pid, 0, name="amanda.tools.memory")]
        for device, *_ in self._devices():
            for ns, size in self._recorder.timeline(device):
                count = {"name": f"memory of {device}", "ph": "C", "pid": pid, "tid": 0, "ts": ns / 1000}
                events.append({**count, "args": {"bytes": size}})
        chrome_trace.write(path, events)

    def write_html(self, path: str | os.PathLike[str], *, title: str = "Memory at the peak") -> None:
        """Writes a page: the curve of memory over time, and tables by kind, line, module and operator.

        Raises:
            OSError: the file cannot be written.
        """
        from . import page  # here: it imports jinja2

        page.write(path, self, title)

    def figures(self) -> list[Curve]:
        curves = []
        for device, peak in self.peak_bytes.items():
            points = self.timeline(device)
            seconds, sizes = [at for at, _ in points], [size / 1e6 for _, size in points]
            curves.append(Curve(f"{device} in use over time", f"{peak / 1e6:.3f} MB at the peak", seconds, sizes, "MB"))
        return curves

    def reset(self) -> None:
        self.reset_evidence()
        if self._recorder is not None:
            self._recorder.reset()
        self._skips.reset()
        self._growth = Growth()
        self._values.reset()
        self._at_error = None
        if self._samples is not None:
            self._samples.reset()

    def _devices(self) -> list[tuple[str, int, int, int, int, int]]:
        return self._recorder.devices() if self._recorder is not None else []

    def _rows(self, by: GroupBy) -> list[Row]:
        return rows_of(self._held(at_peak=True), by)

    def answer(self) -> str:
        if not self.evidence().operators:
            return "no operator ran whose memory could be measured"
        unknown = UNKNOWN if self._values.is_used else ""
        return answer_of(
            self._held(at_peak=True), self.peak_bytes, self._growth, self.growth, unknown, self._values.traced
        )

    def _remarks(self, by: GroupBy) -> list[str]:
        least = "at least " if self._values.is_used else ""
        peaks = [f"{device}: {least}{peak / 1e6:.3f} MB at the peak" for device, peak in self.peak_bytes.items()]
        return [*peaks, self._skips.caption()]

    def _held(self, *, at_peak: bool) -> list[Held]:
        with self._lock:
            marks = list(self._marks)
        found = [self._held_by(block, device, marks) for block, device in self._blocks(at_peak=at_peak)]
        return found + self._values.held(at_peak=at_peak)

    def _blocks(self, *, at_peak: bool) -> list[tuple[_Block, str]]:
        """With their devices."""
        return [
            (_Block(*fields), device)
            for device, *_ in self._devices()
            for fields in self._recorder.blocks(device, at_peak)
        ]

    def _site(self, number: int) -> Site:
        return self._sites[number] if number >= 0 else OUTSIDE

    def _held_by(self, block: _Block, device: str, marks: Sequence[tuple[Kind, str, str]]) -> Held:
        place = self._site(block.made_by).place
        kind, kept_by = self._kind(block, marks)
        is_kept = kind == "other" or kept_by.endswith(GRAPHS)
        return Held(
            place.name, place.op_id, place.module_path, place.source, kind, device, block.bytes, kept_by, is_kept
        )

    def _kind(self, block: _Block, marks: Sequence[tuple[Kind, str, str]]) -> tuple[Kind, str]:
        """The kind of a block, and what kept it. See `Row`."""
        if block.mark:
            kind, name, what = marks[block.mark - 1]
            name = name or "a parameter"
            return kind, f"{what}: {name}" if what else f"{name}.grad" if kind == "gradient" else name
        by = str(self._sites[block.freed_by]) if block.freed_by >= 0 else ""
        if block.made_in_backward:
            return "temporary", ""
        if block.freed_in_backward:
            return "saved activation", by
        return ("temporary", "") if block.is_freed and block.freed_by >= 0 else ("other", "")


def _is_out_of_memory(error: BaseException) -> bool:
    with contextlib.suppress(Exception):  # an exception of the program may have no text
        return any(text in str(error) for text in OUT_OF_MEMORY)
    return False
