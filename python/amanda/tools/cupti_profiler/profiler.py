"""CuptiProfiler: every GPU kernel with the operator, module and line that caused it; times and bytes on the host."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast, overload

import torch

from amanda import OpContext
from amanda.toolkit import AnnotatedResults, Column, Skips, eager_only
from amanda.toolkit.native import NativeTool, cupti
from amanda.toolkit.optimizer_phase import OptimizerPhase
from amanda.toolkit.torch import framework_probe

from . import trace
from .kernel_rows import KernelRow, families_by_operator, kernel_rows
from .line_rows import LineRow, line_rows, on_device
from .operator_rows import GroupBy, OperatorBy, OperatorRow, operator_rows
from .roofline import RooflineRow, roofline_rows
from .tables import GROUPINGS, line_columns, line_costs, operator_columns, roofline_table

if TYPE_CHECKING:
    import matplotlib.axes

    from amanda.toolkit.tables import Table
    from amanda.tools.flops import Flops


Row = OperatorRow | LineRow | KernelRow


class CuptiProfiler(AnnotatedResults[Row, GroupBy], NativeTool):
    """Attributes GPU kernels, copies and memsets to operators, and measures operators on the host::

        profiler = CuptiProfiler()
        with amanda.apply(profiler):
            train_step(model)  # the first step analyses each operator, which takes longer than the operator
            profiler.reset()
            train_one_epoch(model)
        rich.print(profiler.table("module", top=10))
        profiler.export_chrome_trace("trace.json")  # for https://ui.perfetto.dev

    CUPTI collects the kernels; it is the library on which NVIDIA's own profilers are built. It is opened when a scope
    is entered: the library that the environment variable AMANDA_CUPTI names, else the copy that torch has loaded, else
    that of the package nvidia-cuda-cupti or of the CUDA toolkit. If it cannot collect, `gpu_status` and one line in the
    log give the reason, and operators are still measured on the host. Leaving the scope waits for the device.

    A kernel belongs to the innermost operator that was running on the thread that launched it. Backward operators
    belong to the module and line that called their forward operator. A forward operator inside a backward one has the
    phase "recompute" (checkpointing); one that `torch.optim` or a method of an optimizer calls has the phase
    "optimizer".

    The tool is written in C++, changes nothing, and accumulates over all runs, scopes and threads in which it is used.
    An operator that raises is counted in `failed`, and its kernels still belong to it. The tool subtracts its own time
    from the times of enclosing operators, where it can measure it; it cannot measure the framework's dispatch to it.

    Rows are by "op" (the default: operator type and phase), "id" (one operator at its place in the program; "operator"
    is the same), "module", "line" (see `LineRow`), "phase", or "kernel". Fields of modules without "self" include the
    submodules. "kernel" has every kernel, and every kind of copy and memset. Rows have the longest time first: device
    time if the device did anything. See `Results` for `rows`, `table`, `to_pandas`, files and `reset`, and
    `AnnotatedResults` for `annotate` and `write_html`; inside a scope, `reset` waits for pending device work and
    discards it.

    Arguments:
        gpu: collect kernels. If None, where CUPTI can. If True the same, and tables say why if it cannot; else they say
            so only where there is a GPU. If False, CUPTI is not used.
        backward: also measure backward operators.
        nested: also measure inner operators. If False, only the outermost, which costs less.
        operand_bytes: sum the sizes of what each operator reads and writes, for `roofline`. In backward, only the
            gradients are included.
        ops: the operators to measure, as in `Tool.add_inst_for_op`; all by default.
        max_events: the number of operator runs, and that of device activities, to keep for the trace: the first ones,
            about 100 bytes each. Tables include all.

    Raises:
        ValueError: `max_events` is negative.
    """

    def __init__(
        self,
        *,
        gpu: bool | None = None,
        backward: bool = True,
        nested: bool = True,
        operand_bytes: bool = False,
        ops: str | Iterable[str] | None = None,
        max_events: int = 1_000_000,
    ) -> None:
        if max_events < 0:
            raise ValueError(f"[cupti_profiler] max_events is how many runs to keep, 0 or more, got {max_events}")
        names = [ops] if isinstance(ops, str) else None if ops is None else list(ops)
        capsule, self._profile = cupti.make_profiler(
            gpu is not False,
            backward,
            nested,
            operand_bytes,
            names,
            max_events,
            _candidates(),
            framework_probe(),
        )
        super().__init__(capsule)
        self._skips = Skips(self._speaker)
        self.add_inst_for_op(self._look, ops=names)
        if backward:
            self.add_inst_for_op(self._look, backward=True, ops=names, optional=True)
        self._weighs = operand_bytes
        self._gpu_is_wanted = gpu is True or "AMANDA_CUPTI" in os.environ
        self.depends_on(OptimizerPhase())

    def _look(self, context: OpContext) -> None:
        eager_only.leaves_out(context, self._skips, self.needs_eager)

    @property
    def gpu_status(self) -> str:
        """The reason why no kernels are collected; "" if they are, or if no scope was entered yet."""
        return self._profile.gpu_status

    @property
    def notes(self) -> list[str]:
        """The data that is missing from the figures, one sentence each: dropped records, activities without an
        operator, bytes that were reported to another profiler. Empty if nothing was lost."""
        return self._profile.notes()

    def reset(self) -> None:
        self.reset_evidence()
        self._profile.reset()

    # ---- tables -----------------------------------------------------------------------------------------------------

    needs_eager = "it measures operators as Python calls them"
    leaves_compiled_out = True
    _speaker = "cupti_profiler"
    _groupings = GROUPINGS

    @overload  # type: ignore[override]
    def rows(self, by: OperatorBy | None = None) -> list[OperatorRow]: ...
    @overload
    def rows(self, by: Literal["line"]) -> list[LineRow]: ...
    @overload
    def rows(self, by: Literal["kernel"]) -> list[KernelRow]: ...
    def rows(self, by: GroupBy | None = None) -> list[OperatorRow] | list[LineRow] | list[KernelRow]:
        """The measurements so far, as a list of dataclasses; longest time first, device time if the device did anything.

        Raises:
            ValueError: `by` is no grouping of this tool.
        """
        return cast("list[OperatorRow] | list[LineRow] | list[KernelRow]", super().rows(by))

    def kernel_rows(self) -> list[KernelRow]:
        """``rows("kernel")``."""
        return kernel_rows(self._profile)

    def _rows(self, by: GroupBy) -> list[Row]:
        if by == "kernel":
            return [*kernel_rows(self._profile)]
        return [*(line_rows(self._profile) if by == "line" else operator_rows(self._profile, by))]

    def _columns(self, by: GroupBy, rows: Sequence[Row]) -> Sequence[Column]:
        if by == "line":
            return line_columns(cast("Sequence[LineRow]", rows))
        return GROUPINGS[by].columns or operator_columns(by, cast("Sequence[OperatorRow]", rows))

    def _listing_columns(self, lines: Sequence[LineRow]) -> Sequence[Column]:
        return line_columns(lines, listing=True)

    def _costs(self, lines: Sequence[LineRow], all_lines: Sequence[LineRow]) -> str:
        return line_costs(lines, device=on_device(all_lines))

    def _remarks(self, by: GroupBy) -> list[str]:
        there = by == "kernel" or self._gpu_is_wanted or torch.cuda.device_count() > 0
        return [self.gpu_status if there else "", *self.notes]

    # ---- kernel families --------------------------------------------------------------------------------------------

    def kernel_families(self) -> dict[str, dict[str, int]]:
        """The algorithms of each operator type's kernels: nanoseconds on the device by operator type (the innermost
        observed one) and by family, such as "implicit GEMM", "Winograd" or "flash attention". Longest time first."""
        return families_by_operator(self._profile)

    def plot_kernel_families(self, top: int = 10, axes: matplotlib.axes.Axes | None = None) -> matplotlib.axes.Axes:
        """Draws `kernel_families`: one bar for each of the `top` operator types, one colour for each family.

        Raises:
            ImportError: matplotlib is not installed.
        """
        try:
            import matplotlib.pyplot as pyplot
        except ImportError as error:
            raise ImportError(
                "[cupti_profiler] plots need matplotlib: pip install 'amanda-nn[plot]'; kernel_families() needs nothing"
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
        """Operations and bytes per second of the operators that `flops` has counted, per module; longest time first::

            flops, profiler = Flops(), CuptiProfiler(operand_bytes=True)
            with amanda.apply(flops, profiler):
                train_one_epoch(model)
            profiler.roofline(flops)

        The time is device time if the device did anything for the operator, else host time. Bytes are those of the
        operands, each read or written once: the minimum that must be moved; in backward, only the gradients. Rates are
        None if the two tools have not seen the same runs. Flops counts inner operators, so `nested=True` is needed.
        """
        return roofline_rows(self.rows("id"), flops, self._weighs)

    def roofline_table(self, flops: Flops, *, top: int | None = None) -> Table:
        """The first `top` rows of `roofline` as a table for `rich.print`; "?" for a rate that is not known."""
        return roofline_table(self.roofline(flops), top, "\n".join(filter(None, self._remarks("id"))))

    def export_chrome_trace(self, path: str | os.PathLike[str], *, rank: int | None = None) -> None:
        """Writes the kept events as a JSON trace for Perfetto and chrome://tracing.

        There is a track for each host thread, with operators and launches, and one for each stream of a device. Arrows
        lead from an operator to its launches and on to their kernels. Times are microseconds of `time.monotonic`; add
        "baseTimeNanoseconds" to get the time of day, for instance to compare traces of several ranks. "notes" lists
        what is missing.

        Arguments:
            rank: the rank of this process; by default, that of torch.distributed, the environment's RANK, or 0.
        """
        trace.write(path, self._profile, rank, [remark for remark in [self.gpu_status, *self.notes] if remark])


def _candidates() -> list[str]:
    """The locations of CUPTI in the packages that torch depends on."""
    nvidia = importlib.util.find_spec("nvidia")
    folders = list(nvidia.submodule_search_locations or []) if nvidia else []
    patterns = ("cu*/lib/libcupti.so.*", "cuda_cupti/lib/libcupti.so.*")
    return [str(path) for folder in folders for pattern in patterns for path in sorted(Path(folder).glob(pattern))]
