"""CuptiProfiler: every GPU kernel with the operator, module and line that caused it; times and bytes on the host."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from amanda import _cupti, _torch
from amanda.reports.data_frame import data_frame, field_names
from amanda.tool import NativeTool
from amanda.tools.cupti import trace
from amanda.tools.cupti.kernel_rows import KernelRow, families_by_operator, kernel_rows
from amanda.tools.cupti.operator_rows import GroupBy, OperatorRow, operator_rows
from amanda.tools.cupti.optimizer_phase import OptimizerPhase
from amanda.tools.cupti.roofline import RooflineRow, roofline_rows
from amanda.tools.cupti.tables import profile_table, roofline_table

if TYPE_CHECKING:
    import matplotlib.axes
    import pandas
    import rich.table

    from amanda.tools.flops import Flops


class CuptiProfiler(NativeTool):
    """Attributes GPU kernels, copies and memsets to operators, and measures operators on the host::

        profiler = CuptiProfiler()
        with amanda.apply(profiler):
            train_step(model)  # the first one looks at each operator, which takes longer than the operator
            profiler.reset()
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

    Raises:
        ValueError: `max_events` is negative.
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
        if max_events < 0:
            raise ValueError(f"[cupti_profiler] max_events is how many runs to keep, 0 or more, got {max_events}")
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
        """Starts again from zero, inside a scope, too: what the device has under way is waited for, and dropped."""
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
        return operator_rows(self._profile, by)

    def kernel_rows(self) -> list[KernelRow]:
        """Every kernel, kind of copy and memset that the device ran; most time first."""
        return kernel_rows(self._profile)

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
        return profile_table(self._rows(by), by, sort, top, "\n".join(self._remarks()))

    def to_pandas(self, by: GroupBy | Literal["kernel"] = "op") -> pandas.DataFrame:
        """`rows` or, by "kernel", `kernel_rows` as a table with a column for each field.

        Raises:
            ImportError: pandas is not installed.
            ValueError: there is no such grouping.
        """
        columns = field_names(KernelRow if by == "kernel" else OperatorRow)
        return data_frame("cupti_profiler", self._rows(by), columns)

    def _rows(self, by: GroupBy | Literal["kernel"]) -> Sequence[OperatorRow | KernelRow]:
        return self.kernel_rows() if by == "kernel" else self.rows(by)

    # ---- kernel families --------------------------------------------------------------------------------------------

    def kernel_families(self) -> dict[str, dict[str, int]]:
        """Which algorithms each operator type's kernels are: nanoseconds on the device by operator type, the innermost
        that is seen, and by family, such as "implicit GEMM", "Winograd" or "flash attention". Most time first."""
        return families_by_operator(self._profile)

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
        return roofline_rows(self.rows("operator"), flops, self._weighs)

    def roofline_table(self, flops: Flops, *, top: int | None = None) -> rich.table.Table:
        """`roofline` as a table for `rich.print`, the `top` rows of it; "?" where a rate cannot be told.

        Raises:
            ImportError: rich is not installed.
        """
        return roofline_table(self.roofline(flops), top, "\n".join(self._remarks()))

    def export_chrome_trace(self, path: str | os.PathLike[str], *, rank: int | None = None) -> None:
        """Writes what was kept for a trace as JSON that Perfetto and chrome://tracing open.

        There is a track for each host thread, with operators and launches, and one for each stream of a device; arrows lead
        from an operator to its launches and on to their kernels. Times are microseconds of `time.monotonic`;
        "baseTimeNanoseconds" is what to add for the time of day, so that traces of several ranks can be laid side by side.
        What is missing stands under "notes".

        Arguments:
            rank: of this process; None: that of torch.distributed, the environment's RANK, or 0.
        """
        trace.write(path, self._profile, rank, self._remarks())

    def _remarks(self) -> list[str]:
        return [remark for remark in [self.gpu_status, *self.notes] if remark]


def _candidates() -> list[str]:
    """Where the packages that torch comes with put CUPTI."""
    nvidia = importlib.util.find_spec("nvidia")
    folders = list(nvidia.submodule_search_locations or []) if nvidia else []
    patterns = ("cu*/lib/libcupti.so.*", "cuda_cupti/lib/libcupti.so.*")
    return [str(path) for folder in folders for pattern in patterns for path in sorted(Path(folder).glob(pattern))]
