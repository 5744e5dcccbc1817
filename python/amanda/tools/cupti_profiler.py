"""CuptiProfiler: every GPU kernel with the operator, module and line that caused it; times and bytes on the host."""

from __future__ import annotations

import collections
import dataclasses
import importlib.util
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from amanda import _cupti, _torch
from amanda.tool import NativeTool
from amanda.tools import _kernel_trace
from amanda.tools._kernel_families import family_of
from amanda.tools._optimizer_phase import OptimizerPhase

if TYPE_CHECKING:
    import matplotlib.axes
    import pandas
    import rich.table

    from amanda.tools.flops import Flops

GroupBy = Literal["op", "operator", "module", "phase"]
OUTSIDE = "(outside operators)"
"""The row of what the device did for no operator that is seen."""


@dataclasses.dataclass
class OperatorRow:
    """What operators of one kind add up to. "self" is without the operators inside; without it, with them.

    Times are nanoseconds: on the host, wall time from just before the operator is called until it returns, threads added
    up; on the device, time of kernels, copies and memsets, streams added up. Bytes are the host allocator's.
    """

    name: str  # "aten::conv2d", "ConvolutionBackward0"; by "module" the module's path
    phase: str = ""  # "forward", "backward", "recompute" or "optimizer"; by "module": ""
    module_path: str = ""  # by "operator" and "module"
    source: str = ""  # by "operator": file:line
    forward_name: str = ""  # of a backward operator, by "op" and "operator": "aten::conv2d"
    calls: int = 0
    failed: int = 0  # runs that raised an exception; not measured
    host_ns: int = 0
    host_self_ns: int = 0
    device_ns: int = 0
    device_self_ns: int = 0
    kernels: int = 0  # and copies and memsets; with those of operators inside
    allocated_bytes: int = 0
    freed_bytes: int = 0
    allocated_self_bytes: int = 0
    freed_self_bytes: int = 0
    device_allocated_bytes: int = 0
    device_freed_bytes: int = 0
    operand_bytes: int = 0  # read and written by the operator itself; 0 without `operand_bytes=True`


@dataclasses.dataclass
class KernelRow:
    """All runs of one kernel, or all copies or memsets of one kind. Times are nanoseconds on the device."""

    name: str  # demangled
    kind: str  # "kernel", "memcpy" or "memset"
    family: str  # "implicit GEMM", "flash attention", ...
    count: int = 0
    total_ns: int = 0
    shortest_ns: int = 0
    longest_ns: int = 0
    bytes: int = 0  # copied or set
    operators: dict[str, int] = dataclasses.field(default_factory=dict)  # nanoseconds by operator type


@dataclasses.dataclass(frozen=True)
class RooflineRow:
    """What an operator type achieves in one module. A rate is None where it cannot be told."""

    name: str
    module_path: str
    calls: int
    flops: int
    bytes: int | None  # None: made without `operand_bytes=True`
    time_ns: int
    on_device: bool  # is the time that of the device, or the host's?
    flops_per_second: float | None
    bytes_per_second: float | None
    intensity: float | None  # operations per byte


class CuptiProfiler(NativeTool):
    """Attributes GPU kernels, copies and memsets to operators, and measures operators on the host::

        profiler = CuptiProfiler()
        with amanda.apply(profiler):
            train_one_epoch(model)
        rich.print(profiler.table("module", top=10))
        profiler.export_chrome_trace("trace.json")  # for https://ui.perfetto.dev

    Kernels are collected by CUPTI, the library that NVIDIA's own profilers are made with. It is opened when a scope is
    entered: what the environment variable AMANDA_CUPTI names, else the copy that torch has loaded, else that of the
    package nvidia-cuda-cupti or of the CUDA toolkit. Where it cannot collect, `gpu_status` and one line in the log say
    why, and operators are measured on the host all the same. Leaving the scope waits for the device.

    A kernel belongs to the innermost operator that was running on the thread that launched it. Backward operators belong
    to the module and line that called their forward operator. A forward operator inside a backward one is recomputed
    ("recompute", checkpointing); one that `torch.optim` or a method of an optimizer calls is the optimizer's.

    It is written in C++, changes nothing, and goes on adding up over as many runs, scopes and threads as it is used in.
    An operator that raises is counted in `failed`, and its kernels are its own. What the tool itself takes is taken off
    the times of the operators around, as far as it can be measured: not the framework's dispatch to it.

    Arguments:
        gpu: collect kernels. Without, CUPTI is left alone.
        backward: look at backward operators, too.
        nested: look at operators inside operators. Without, only at the outermost, which costs less.
        operand_bytes: add up the sizes of what each operator reads and writes, for `roofline`. In backward these are the
            gradients alone.
        ops: the operators asked for, as in `Tool.add_inst_for_op`; None: all of them.
        max_events: runs of operators, and activities of the device, kept for the trace: the first ones, about 100 bytes
            each. Tables count all.
    """

    def __init__(
        self,
        *,
        gpu: bool = True,
        backward: bool = True,
        nested: bool = True,
        operand_bytes: bool = False,
        ops: str | Iterable[str] | None = None,
        max_events: int = 1_000_000,
    ) -> None:
        names = [ops] if isinstance(ops, str) else None if ops is None else list(ops)
        capsule, self._profile = _cupti.make_profiler(
            gpu, backward, nested, operand_bytes, names, max_events, _candidates(), _torch.framework_probe()
        )
        super().__init__(capsule)
        self._weighs = operand_bytes
        self.depends_on(OptimizerPhase())

    @property
    def gpu_status(self) -> str:
        """Why no kernels are collected, in a sentence; "" if they are, or if no scope was entered yet."""
        return self._profile.gpu_status

    @property
    def notes(self) -> list[str]:
        """What the figures lack, a sentence each: records that were dropped, activities without an operator, bytes that
        another profiler was told of. Empty: nothing was lost."""
        return self._profile.notes()

    def reset(self) -> None:
        """Starts again from zero."""
        self._profile.reset()

    # ---- tables -----------------------------------------------------------------------------------------------------

    def rows(self, by: GroupBy = "op") -> list[OperatorRow]:
        """What was measured so far; most time first, on the device if it did anything.

        Arguments:
            by: "op": by operator type and phase; "operator": by place in the program; "module": by module path, where
                a row without "self" holds the modules inside as well; "phase".

        Raises:
            ValueError: `by` is something else.
        """
        if by not in _KEYS:
            raise ValueError(f'[cupti_profiler] rows are by "op", "operator", "module" or "phase", got {by!r}')
        operators, nodes = self._profile.operators(), self._profile.nodes()
        rows: dict[Any, OperatorRow] = {}

        def row(key: Any, node: _cupti.Node) -> OperatorRow:
            if key not in rows:
                rows[key] = _KEYS[by].describe(key, operators[node.op], node.phase)
            return rows[key]

        def rows_around(node: _cupti.Node) -> list[OperatorRow]:
            """Of the node and of those it runs in: each once, or recursion would count twice."""
            holders: dict[Any, _cupti.Node] = {}
            while node.index:
                holders |= dict.fromkeys(_KEYS[by].around(operators[node.op], node), node)
                node = nodes[node.parent]
            return [row(key, holder) for key, holder in holders.items()]

        outside = OperatorRow(OUTSIDE)
        around: dict[int, list[OperatorRow]] = {0: [outside]}
        own: dict[int, OperatorRow] = {0: outside}
        for node in nodes[1:]:
            if node.calls or node.failed:
                own[node.index] = row(_KEYS[by].own(operators[node.op], node), node)
                around[node.index] = rows_around(node)
                _add_host(own[node.index], around[node.index], node)
        for kernel in self._profile.kernels():
            own.get(kernel.node, outside).device_self_ns += kernel.total_ns
            for outer in around.get(kernel.node, [outside]):
                outer.device_ns += kernel.total_ns
                outer.kernels += kernel.count
        found = [*rows.values(), *([outside] if outside.kernels else [])]
        field = _busiest(found)
        return sorted(found, key=lambda row: -getattr(row, field))

    def kernel_rows(self) -> list[KernelRow]:
        """Every kernel, kind of copy and memset that the device ran; most time first."""
        operators, nodes = self._profile.operators(), self._profile.nodes()
        rows: dict[tuple[str, str], KernelRow] = {}
        for kernel in self._profile.kernels():
            row = rows.setdefault(
                (kernel.name, kernel.kind), KernelRow(kernel.name, kernel.kind, _family(kernel), shortest_ns=2**62)
            )
            row.count += kernel.count
            row.total_ns += kernel.total_ns
            row.shortest_ns = min(row.shortest_ns, kernel.shortest_ns)
            row.longest_ns = max(row.longest_ns, kernel.longest_ns)
            row.bytes += kernel.bytes
            operator = operators[nodes[kernel.node].op].name if kernel.node else OUTSIDE
            row.operators[operator] = row.operators.get(operator, 0) + kernel.total_ns
        return sorted(rows.values(), key=lambda row: -row.total_ns)

    def table(
        self, by: GroupBy | Literal["kernel"] = "op", *, sort: str | None = None, top: int | None = None
    ) -> rich.table.Table:
        """`rows` or, by "kernel", `kernel_rows` as a table for `rich.print`.

        Arguments:
            by: as in `rows`, or "kernel".
            sort: the field of the rows to sort by, largest first; None: as they come.
            top: how many rows to show; a line tells how many more there are.

        Raises:
            ImportError: rich is not installed.
            ValueError: there is no such grouping or field.
        """
        try:
            import rich.box
            import rich.table
            import rich.text
        except ImportError as error:
            raise ImportError(
                "[cupti_profiler] tables need rich: pip install 'amanda[profile]'; rows() needs nothing"
            ) from error
        rows: Sequence[OperatorRow | KernelRow] = self.kernel_rows() if by == "kernel" else self.rows(by)
        rows = _sorted(rows, sort, KernelRow if by == "kernel" else OperatorRow)
        columns = _KERNEL_COLUMNS if by == "kernel" else _columns_of(rows, by)
        caption = [status for status in [self.gpu_status, *self.notes] if status]
        table = rich.table.Table(box=rich.box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
        table.caption = rich.text.Text("\n".join(caption)) if caption else None
        for heading in columns:
            number = heading not in _TEXTS
            table.add_column(heading, justify="right" if number else "left", no_wrap=number, overflow="fold")
        for row in rows[:top]:
            table.add_row(*(rich.text.Text(cell(row)) for cell in columns.values()))
        if top is not None and len(rows) > top:
            table.add_row(f"({len(rows) - top} more)", style="dim")
        return table

    def to_pandas(self, by: GroupBy | Literal["kernel"] = "op") -> pandas.DataFrame:
        """`rows` or, by "kernel", `kernel_rows` as a table with a column for each field.

        Raises:
            ImportError: pandas is not installed.
            ValueError: there is no such grouping.
        """
        try:
            import pandas
        except ImportError as error:
            raise ImportError(
                "[cupti_profiler] to_pandas needs pandas: pip install 'amanda[statistics]'; rows() needs nothing"
            ) from error
        rows: Sequence[OperatorRow | KernelRow] = self.kernel_rows() if by == "kernel" else self.rows(by)
        kind = KernelRow if by == "kernel" else OperatorRow
        columns = [field.name for field in dataclasses.fields(kind)]
        return pandas.DataFrame([[getattr(row, column) for column in columns] for row in rows], columns=columns)

    # ---- kernel families --------------------------------------------------------------------------------------------

    def kernel_families(self) -> dict[str, dict[str, int]]:
        """Which algorithms each operator type's kernels are: nanoseconds on the device by operator type, the innermost
        that is seen, and by family, such as "implicit GEMM", "Winograd" or "flash attention". Most time first."""
        operators, nodes = self._profile.operators(), self._profile.nodes()
        families: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
        for kernel in self._profile.kernels():
            operator = operators[nodes[kernel.node].op].name if kernel.node else OUTSIDE
            families[operator][_family(kernel)] += kernel.total_ns
        by_time = sorted(families.items(), key=lambda item: -item[1].total())
        return {operator: dict(times.most_common()) for operator, times in by_time}

    def plot_kernel_families(self, top: int = 10, axes: matplotlib.axes.Axes | None = None) -> matplotlib.axes.Axes:
        """Draws `kernel_families`: a bar for each of the `top` operator types, a colour for each family.

        Raises:
            ImportError: matplotlib is not installed.
        """
        try:
            import matplotlib.pyplot as pyplot
        except ImportError as error:
            raise ImportError(
                "[cupti_profiler] plots need matplotlib: pip install 'amanda[plot]'; kernel_families() needs nothing"
            ) from error
        if axes is None:
            axes = pyplot.subplots(layout="constrained")[1]
        shown = dict(list(self.kernel_families().items())[:top][::-1])
        left = dict.fromkeys(shown, 0.0)
        for family in dict.fromkeys(family for times in shown.values() for family in times):
            widths = [times.get(family, 0) / 1e6 for times in shown.values()]
            axes.barh(list(shown), widths, left=list(left.values()), label=family)
            left = {operator: at + width for (operator, at), width in zip(left.items(), widths, strict=True)}
        axes.set_xlabel("time on the device, ms")
        if shown:
            axes.legend(title="kernels")
        return axes

    # ---- beside other tools -----------------------------------------------------------------------------------------

    def roofline(self, flops: Flops) -> list[RooflineRow]:
        """Operations and bytes per second of the operators that `flops` has counted, per module; most time first::

            flops, profiler = Flops(), CuptiProfiler(operand_bytes=True)
            with amanda.apply(flops, profiler):
                train_one_epoch(model)
            profiler.roofline(flops)

        The time is the device's if it did anything for the operator, else the host's. Bytes are the operands', read and
        written once: what has to move at least; in backward, the gradients alone. Rates are None where the two tools have
        not seen the same runs. Operators inside others are counted, so `nested=True` is needed.
        """
        timed: dict[tuple[str, str], OperatorRow] = {}
        for row in self.rows("operator"):
            total = timed.setdefault((row.name, row.module_path), OperatorRow(row.name))
            for field in ("calls", "host_ns", "device_ns", "operand_bytes"):
                setattr(total, field, getattr(total, field) + getattr(row, field))
        rows = []
        for counted in flops.rows():
            total = timed.get((counted.op, counted.module_path), OperatorRow(counted.op))
            time_ns = total.device_ns or total.host_ns
            seconds = time_ns / 1e9 if total.calls == counted.runs and time_ns else None
            size = total.operand_bytes if self._weighs else None
            rows.append(
                RooflineRow(
                    name=counted.op,
                    module_path=counted.module_path,
                    calls=counted.runs,
                    flops=counted.flops,
                    bytes=size,
                    time_ns=time_ns,
                    on_device=bool(total.device_ns),
                    flops_per_second=counted.flops / seconds if seconds else None,
                    bytes_per_second=size / seconds if seconds and size is not None else None,
                    intensity=counted.flops / size if size else None,
                )
            )
        return sorted(rows, key=lambda row: -row.time_ns)

    def export_chrome_trace(self, path: str | os.PathLike[str], *, rank: int | None = None) -> None:
        """Writes what was kept for a trace as JSON that Perfetto and chrome://tracing open.

        There is a track for each host thread, with operators and launches, and one for each stream of a device; arrows lead
        from an operator to its launches and on to their kernels. Times are microseconds of `time.monotonic`;
        "baseTimeNanoseconds" is what to add for the time of day, so that traces of several ranks can be laid side by side.
        What is missing stands under "notes".

        Arguments:
            rank: of this process; None: that of torch.distributed, the environment's RANK, or 0.
        """
        _kernel_trace.write(path, self._profile, rank, [note for note in [self.gpu_status, *self.notes] if note])


# ---- grouping -----------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Grouping:
    own: Callable[[_cupti.ProfiledOperator, _cupti.Node], Any]  # the group that a node itself counts for
    around: Callable[
        [_cupti.ProfiledOperator, _cupti.Node], Iterable[Any]
    ]  # and those that hold it, the first included
    describe: Callable[[Any, _cupti.ProfiledOperator, str], OperatorRow]


def _grouping(
    own: Callable[[_cupti.ProfiledOperator, _cupti.Node], Any],
    describe: Callable[[Any, _cupti.ProfiledOperator, str], OperatorRow],
) -> _Grouping:
    return _Grouping(own, lambda op, node: (own(op, node),), describe)


def _prefixes(path: str) -> Iterator[str]:
    yield ""
    parts = path.split(".") if path else []
    for end in range(1, len(parts) + 1):
        yield ".".join(parts[:end])


def _describe_place(key: Any, op: _cupti.ProfiledOperator, phase: str) -> OperatorRow:
    forward = op.forward_name if op.backward_op_id else ""
    return OperatorRow(op.name, phase, op.module_path, op.source, forward)


_KEYS: dict[str, _Grouping] = {
    "op": _grouping(
        lambda op, node: (op.name, node.phase),
        lambda key, op, phase: OperatorRow(op.name, phase, forward_name=op.forward_name if op.backward_op_id else ""),
    ),
    "operator": _grouping(lambda op, node: (node.op, node.phase), _describe_place),
    "module": _Grouping(
        lambda op, node: op.module_path,
        lambda op, node: _prefixes(op.module_path),
        lambda key, op, phase: OperatorRow(key, module_path=key),
    ),
    "phase": _grouping(lambda op, node: node.phase, lambda key, op, phase: OperatorRow(key, key)),
}


def _add_host(own: OperatorRow, around: Iterable[OperatorRow], node: _cupti.Node) -> None:
    measured = node.sum
    own.calls += node.calls
    own.failed += node.failed
    own.host_self_ns += measured.exclusive_ns
    own.allocated_self_bytes += measured.allocated_bytes
    own.freed_self_bytes += measured.freed_bytes
    own.operand_bytes += measured.operand_bytes
    for row in around:
        row.host_ns += measured.exclusive_ns
        row.allocated_bytes += measured.allocated_bytes
        row.freed_bytes += measured.freed_bytes
        row.device_allocated_bytes += measured.device_allocated_bytes
        row.device_freed_bytes += measured.device_freed_bytes


# ---- tables -------------------------------------------------------------------------------------------------------------

_TEXTS = ("op", "operator", "module", "phase", "source", "kernel", "family", "mostly by")

_KERNEL_COLUMNS: dict[str, Callable[[Any], str]] = {
    "kernel": lambda row: row.name,
    "family": lambda row: row.family,
    "count": lambda row: f"{row.count}",
    "total ms": lambda row: f"{row.total_ns / 1e6:.2f}",
    "mean µs": lambda row: f"{row.total_ns / row.count / 1e3:.1f}",
    "mostly by": lambda row: max(row.operators, key=row.operators.__getitem__),
}


def _busiest(rows: Iterable[Any]) -> str:
    return "device_ns" if any(row.device_ns for row in rows) else "host_ns"


def _columns_of(rows: Sequence[Any], by: str) -> dict[str, Callable[[Any], str]]:
    columns: dict[str, Callable[[Any], str]] = {by: lambda row: row.name or "(no module)"}
    if by == "operator":
        columns["module"] = lambda row: row.module_path
        columns["source"] = lambda row: os.path.basename(row.source)
    if by in ("op", "operator"):
        columns["phase"] = lambda row: row.phase
    columns["calls"] = lambda row: f"{row.calls}"
    for where in ("device", "host") if _busiest(rows) == "device_ns" else ("host",):
        columns[f"{where} ms"] = _milliseconds(f"{where}_ns")
        columns[f"{where} self ms"] = _milliseconds(f"{where}_self_ns")
        if where == "device":
            columns["kernels"] = lambda row: f"{row.kernels}"
    columns["allocated MB"] = lambda row: f"{row.allocated_bytes / 1e6:.2f}"
    return columns


def _milliseconds(field: str) -> Callable[[Any], str]:
    return lambda row: f"{getattr(row, field) / 1e6:.2f}"


def _sorted(rows: Sequence[Any], field: str | None, kind: type[Any]) -> Sequence[Any]:
    if field is None:
        return rows
    fields = [known.name for known in dataclasses.fields(kind) if known.name != "operators"]
    if field not in fields:
        raise ValueError(f"[cupti_profiler] there is no field {field!r} to sort by; there are {', '.join(fields)}")
    texts = bool(rows) and isinstance(getattr(rows[0], field), str)
    return sorted(rows, key=lambda row: getattr(row, field), reverse=not texts)


def _family(kernel: _cupti.KernelTotals) -> str:
    return family_of(kernel.name) if kernel.kind == "kernel" else kernel.kind


def _candidates() -> list[str]:
    """Where the packages that torch comes with put CUPTI."""
    nvidia = importlib.util.find_spec("nvidia")
    folders = list(nvidia.submodule_search_locations or []) if nvidia else []
    patterns = ("cu*/lib/libcupti.so.*", "cuda_cupti/lib/libcupti.so.*")
    return [str(path) for folder in folders for pattern in patterns for path in sorted(Path(folder).glob(pattern))]
