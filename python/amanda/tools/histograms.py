"""ValueHistograms: how the values of every operator's outputs are distributed, and how many are zero, step by step."""

from __future__ import annotations

import array
import dataclasses
import math
import operator
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from amanda import OpContext, Tool
from amanda.toolkit import Arrays, GroupBy, Place, PlaceRow, Skips, TellsSkips, arrays_in, locks, place_groupings
from amanda.toolkit.tables import Column, Results, number_column
from amanda.toolkit.unwritten import MEMORY, allocates, may_be_met

if TYPE_CHECKING:
    import matplotlib.axes

LOWEST = -32
MAGNITUDES = tuple(2.0**exponent for exponent in range(LOWEST, -LOWEST + 1))
"""The bins that `ValueHistograms` has by default: powers of two, for magnitudes."""


@dataclasses.dataclass(frozen=True)
class Row(PlaceRow):
    """One output of one operator in some of its executions; or all outputs of an operator type, a module or a line."""

    output: int | None  # the position, by "id"; a list of tensors is one position
    step: int  # the first execution that the row stands for, from 0 on
    calls: int  # executions that were looked at; each counts once per output
    elements: int
    zeros: int
    nans: int
    below: int  # elements that are smaller than the first bin; with magnitudes these are zeros, too
    above: int  # elements that are larger than the last bin
    counts: tuple[int, ...]  # of each bin

    @property
    def sparsity(self) -> float:
        """The fraction of elements that are zero, 0 to 1; 0 if there are no elements."""
        return self.zeros / self.elements if self.elements else 0.0


class ValueHistograms(TellsSkips, Results[Row, GroupBy], Tool):
    """Counts the values of operators' outputs in bins, and the zeros, over time::

        histograms = ValueHistograms(ops=amanda.ops.activation, every=10)
        with amanda.apply(histograms):
            train(model)
        histograms.plot("layer1.relu")  # values over steps
        histograms.plot_sparsity()

    *Step* i of an operator is its i-th execution, counted from 0 on since the tool was made or reset, over all scopes.
    In training, a layer that runs once per iteration has a step per iteration. A layer in a loop, or one that
    checkpointing recomputes, has several.

    Bins are those of `numpy.histogram`: closed on the left, and the last one on both sides. By default they are powers of
    two for the magnitudes of values, 2^-32 to 2^32, as fits a floating-point format: bin i is that of one exponent.
    With `bins`, values are counted with their signs. For complex values, the magnitudes are always counted.

    No tensor is kept. If an operator has more than `max_steps` steps, each two neighboring steps of all operators become
    one. So memory grows with the program, not with its length: about 1 kB per output and step.

    Outputs that cannot be read, or are in memory that no operator has filled yet, are not counted; see `skipped`.
    Counting takes memory for each output for a moment, up to 16 bytes per element. On CUDA the host waits for it. An
    operator that raises is not counted.

    Rows are by "id" (the default: one operator at its place in the program), "op", "module" or "line", and by step, in the
    order in which operators first ran. See `Results` for `rows`, `table`, `to_pandas` and `reset`.

    Arguments:
        ops, modules: as in `Tool.add_inst_for_op`.
        bins: the edges of the bins, ascending. By default, powers of two, for magnitudes.
        every: look at one out of this number of executions of each operator, starting with the first; the others cost
            little.
        max_steps: the number of steps of each operator to keep apart, an even number.

    Raises:
        ValueError: there are fewer than two edges, or they do not ascend; `every` is not positive; `max_steps` is not
            positive and even.
    """

    _speaker = "histograms"
    _counted = (
        number_column("step", "step"),
        number_column("calls", "calls"),
        number_column("elements", "elements"),
        Column("zeros", lambda row: f"{row.sparsity:.1%}", field="sparsity"),
        *(number_column(field, field) for field in ("below", "above")),
        number_column("NaN", "nans"),
    )
    _output = Column("out", lambda row: "" if row.output is None else f"{row.output}", field="output")
    _groupings = place_groupings(Row, _counted, {"id": [_output]}, sparsity="float64")

    def __init__(
        self,
        *,
        ops: str | Iterable[str] | None = None,
        modules: str | Iterable[str] | None = None,
        bins: Sequence[float] | None = None,
        every: int = 1,
        max_steps: int = 256,
    ) -> None:
        super().__init__()
        self.edges = MAGNITUDES if bins is None else tuple(map(float, bins))
        if len(self.edges) < 2 or any(not low < high for low, high in zip(self.edges, self.edges[1:], strict=False)):
            raise ValueError(f"[histograms] bins= are the edges of the bins, two or more that ascend; got {bins!r}")
        if operator.index(every) < 1:
            raise ValueError(f"[histograms] every= is 1 for each execution, 2 for every second one, ...; got {every!r}")
        if operator.index(max_steps) < 2 or max_steps % 2:
            raise ValueError(f"[histograms] max_steps= is how many steps to keep, an even number; got {max_steps!r}")
        self._magnitudes, self._every, self._max_steps = bins is None, every, max_steps
        self._width = every  # executions that a step stands for
        self._executions: dict[int | None, int] = {}
        self._steps: dict[tuple[Place, int], dict[int, _Counts]] = {}
        self._skips = Skips("histograms", MEMORY)
        self._lock = locks.lock()  # guards the four above
        if may_be_met(ops):
            self.depends_on(MEMORY)
        self.add_inst_for_op(self._analyze, ops=ops, modules=modules)

    def _analyze(self, context: OpContext) -> None:
        if not allocates(context):
            context.insert_after_op(self._record, place=Place.of(context))

    def _record(self, *outputs: Any, place: Place) -> None:
        with self._lock:
            execution = self._executions.get(place.op_id, 0)
            self._executions[place.op_id] = execution + 1
        if execution % self._every:
            return
        found = [self._count(output) for output in outputs]  # not under the lock: this takes most of the time
        with self._lock:
            while execution // self._width >= self._max_steps:
                self._halve()
            for position, counts in enumerate(found):
                steps = self._steps.setdefault((place, position), {})
                steps.setdefault(execution // self._width, self._nothing()).add(counts)

    def _halve(self) -> None:
        """Makes each two neighboring steps one."""
        self._width *= 2
        for place, steps in self._steps.items():
            halved = self._steps[place] = {}
            for step, counts in steps.items():
                halved.setdefault(step // 2, self._nothing()).add(counts)

    def _nothing(self) -> _Counts:
        return _Counts(array.array("q", bytes(8 * (len(self.edges) + 1))))

    def _count(self, output: Any) -> _Counts:
        counts = self._nothing()
        counts.calls = 1
        for values in arrays_in(output):
            counts.add(self._skips.read(values, self._histogram) or self._nothing())
        return counts

    def _histogram(self, values: Any, arrays: Arrays) -> _Counts:
        xp = arrays.xp
        values = (xp.abs(values) if arrays.is_complex(values) else values).reshape(-1)
        elements = len(values)
        small = arrays.is_floating(values) and values.dtype.itemsize <= 4
        # Exact, and powers of two are, too.
        values = arrays.cast(values, xp.float32 if small and self._magnitudes else xp.float64)
        zeros, nans = elements - int(xp.count_nonzero(values)), 0
        if not xp.isfinite(values.sum()):
            nans = int(xp.isnan(values).sum())
            values = xp.nan_to_num(values[~xp.isnan(values)])  # infinities become the largest numbers
        if self._magnitudes:
            values = xp.abs(values)
            # frexp's exponent is that of the power of two above a value; a zero's is 0.
            slots = (xp.frexp(values)[1] - LOWEST).clip(0, len(self.edges))
        else:
            slots = xp.searchsorted(arrays.like(values, self.edges), values, side="right")
        bins = array.array("q", xp.bincount(slots, minlength=len(self.edges) + 1).tolist())
        if self._magnitudes:
            bins[-LOWEST] -= zeros
            bins[0] += zeros
        if bins[-1]:  # the last bin is closed
            last = int((values == self.edges[-1]).sum())
            bins[-1] -= last
            bins[-2] += last
        return _Counts(bins, 0, elements, zeros, nans)

    # ---- reporting --------------------------------------------------------------------------------------------------

    def reset(self) -> None:
        self.reset_evidence()
        with self._lock:
            self._width = self._every
            self._executions.clear()
            self._steps.clear()
        self._skips.reset()

    def _rows(self, by: GroupBy) -> list[Row]:
        groups: dict[tuple[Place, int | None], dict[int, _Counts]] = {}
        with self._lock:
            for (place, position), steps in self._steps.items():
                group = groups.setdefault((place.group(by), position if by == "id" else None), {})
                for step, counts in steps.items():
                    group.setdefault(step * self._width, self._nothing()).add(counts)
        return [
            group[step].row(place, position, step)
            for (place, position), group in groups.items()
            for step in sorted(group)
        ]

    # ---- plots ------------------------------------------------------------------------------------------------------

    def plot(self, name: str, by: GroupBy = "module", axes: matplotlib.axes.Axes | None = None) -> matplotlib.axes.Axes:
        """Draws the values of a module, or of what else rows are by, over steps: the darker, the more elements.

        Arguments:
            name: of the rows, as `rows(by)` has it.

        Raises:
            ImportError: matplotlib is not installed.
            ValueError: there are no rows of this name.
        """
        rows = [row for row in self.rows(by) if row.name == name]
        if not rows:
            known = ", ".join(dict.fromkeys(repr(row.name) for row in self.rows(by))) or "none yet"
            raise ValueError(f'[histograms] no rows by "{by}" are of {name!r}; there are {known}')
        axes = self._axes(axes)
        steps = sorted({row.step for row in rows})
        counts = [[0] * len(steps) for _ in self.edges[1:]]
        elements = [0] * len(steps)
        for row in rows:
            column = steps.index(row.step)
            elements[column] += row.elements
            for bin_, count in zip(counts, row.counts, strict=True):
                bin_[column] += count
        shares = [[count / (whole or 1) for count, whole in zip(bin_, elements, strict=True)] for bin_ in counts]
        starts = [*steps, steps[-1] + self._width]
        mesh = axes.pcolormesh(starts, range(len(self.edges)), shares, cmap="Greys")
        axes.figure.colorbar(mesh, ax=axes, label="share of elements")
        used = [i for i, bin_ in enumerate(counts) if any(bin_)] or [0]
        axes.set_ylim(used[0], used[-1] + 1)
        ticks = range(used[0], used[-1] + 2, max(1, (used[-1] - used[0]) // 8))
        edges = [self.edges[i] for i in ticks]
        power = "$2^{{{:.0f}}}$".format
        axes.set_yticks(ticks, [power(math.log2(edge)) if self._magnitudes else f"{edge:.3g}" for edge in edges])
        axes.set(xlabel="step", ylabel="magnitude" if self._magnitudes else "value", title=name)
        return axes

    def plot_sparsity(self, by: GroupBy = "module", axes: matplotlib.axes.Axes | None = None) -> matplotlib.axes.Axes:
        """Draws the share of zeros over steps: a line for each module, or what else rows are by.

        Raises:
            ImportError: matplotlib is not installed.
        """
        axes = self._axes(axes)
        lines: dict[tuple[str, int | None, int | None], list[Row]] = {}
        for row in self.rows(by):
            lines.setdefault((row.name, row.op_id, row.output), []).append(row)
        for (name, _, _), rows in lines.items():
            axes.plot([row.step for row in rows], [row.sparsity for row in rows], label=name)
        axes.set(xlabel="step", ylabel="share of zeros", ylim=(-0.02, 1.02))
        if lines:
            axes.legend()
        return axes

    def _axes(self, axes: matplotlib.axes.Axes | None) -> matplotlib.axes.Axes:
        try:
            import matplotlib.pyplot as pyplot
        except ImportError as error:
            raise ImportError(
                "[histograms] plots need matplotlib: pip install 'amanda-nn[plot]'; rows() needs nothing"
            ) from error
        return pyplot.subplots(layout="constrained")[1] if axes is None else axes


@dataclasses.dataclass(eq=False)
class _Counts:
    """The counts of some executions."""

    bins: array.array[int]  # the first and the last one are those below and above
    calls: int = 0
    elements: int = 0
    zeros: int = 0
    nans: int = 0

    def add(self, other: _Counts) -> None:
        self.bins = array.array("q", map(operator.add, self.bins, other.bins))
        self.calls += other.calls
        self.elements += other.elements
        self.zeros += other.zeros
        self.nans += other.nans

    def row(self, place: Place, position: int | None, step: int) -> Row:
        below, *counts, above = self.bins
        return Row(
            *place, position, step, self.calls, self.elements, self.zeros, self.nans, below, above, tuple(counts)
        )
