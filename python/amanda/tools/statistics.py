"""OpStatistics: how often every operator runs, and the range, mean, spread, zeros and NaNs of its outputs."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Iterator
from typing import Any

from amanda import OpContext, Tool
from amanda.toolkit import Arrays, GroupBy, NativeRoutine, Place, PlaceRow, arrays_of, locks, natively, place_groupings
from amanda.toolkit.skips import Skips, TellsSkips
from amanda.toolkit.tables import Column, Results, general_column, number_column
from amanda.toolkit.unwritten import MEMORY, allocates, may_pass_on


@dataclasses.dataclass(frozen=True)
class Row(PlaceRow):
    """One output of one operator over all its runs; an operator that returns nothing has one row with no output.

    By "op" a row is one output of all operators of a type; by "module" and "line" all outputs of all operators there.
    `min`, `max`, `mean` and `std` cover the finite elements of floating-point outputs; None if there was none.
    `std` is the population standard deviation: it divides by the number of elements, not by one less.
    """

    output: int | None  # the position; a list of tensors is one position
    calls: int  # runs of the operator, or of all operators of the row
    elements: int  # of all runs together
    min: float | None
    max: float | None
    mean: float | None
    std: float | None
    zeros: int
    nans: int
    infs: int  # positive and negative
    skipped: int = 0  # tensors that could not be read

    @property
    def sparsity(self) -> float:
        """The fraction of elements that are zero, 0 to 1; 0 if there are no elements."""
        return self.zeros / self.elements if self.elements else 0.0


class OpStatistics(TellsSkips, Results[Row, GroupBy], Tool):
    """Collects statistics of all outermost operators' outputs, over all runs, scopes and threads in which it is used::

        statistics = OpStatistics()
        with amanda.apply(statistics):
            train_one_epoch(model)
        print(statistics.table(sort="sparsity", top=10))

    Outputs are merged run by run; none is kept. Figures are computed in float64: on the CPU in one pass, elsewhere each
    output is temporarily converted, 8 bytes per element. On CUDA the host waits for it.

    For integer, boolean and complex outputs, only elements and zeros are counted. Only calls are counted for sparse,
    quantized and nested tensors, tensors without data (``device="meta"``), types that torch cannot convert (int4), and
    subclasses with a `__torch_dispatch__` of their own; these count as `skipped`. So do views and copies of memory that
    no operator has filled yet. Results of ``torch.empty`` have no elements to count. Inside `torch.vmap` the elements
    are those of all samples.

    An operator that raises is not counted. An operator that checkpointing recomputes is counted again.

    Rows are by "id" (the default: one operator at its place in the program), "op", "module" or "line", in the order in
    which they first ran. See `Results` for `rows`, `table`, `to_pandas` and `reset`.
    """

    _speaker = "statistics"

    def __init__(self) -> None:
        super().__init__()
        self._operators: dict[int | None, _Operator] = {}  # that were read in Python
        self._recorder: Any = None  # of those that were read in C++
        self._places: dict[int | None, Place] = {}  # of these
        self._skips = Skips("statistics", MEMORY)
        self._lock = locks.lock()  # guards the fields above
        self.depends_on(MEMORY)
        self.add_inst_for_op(self._analyze)

    def _analyze(self, context: OpContext) -> None:
        place, has_values = Place.of(context), not allocates(context)
        record = self._record if has_values else self._record_run
        native = natively(context)
        if native is None:
            context.insert_after_op(record, place=place)
            return
        with self._lock:
            recorder = self._recorder = self._recorder or native.StatisticsRecorder()
            self._places.setdefault(place.op_id, place)
        if not has_values:
            routine = recorder.routine_of_runs(context.op_id)
        elif may_pass_on(context):
            routine = recorder.routine_where_unwritten(context.op_id, MEMORY.native(native))
        else:
            routine = recorder.routine(context.op_id)
        context.insert_after_op(NativeRoutine(routine, record), place=place)

    def _record(self, *outputs: Any, place: Place) -> None:
        found = [
            _Summary.of(output, self._skips) for output in outputs
        ]  # not under the lock: it takes most of the time
        with self._lock:
            self._operators.setdefault(place.op_id, _Operator(place)).add(1, found)

    def _record_run(self, *outputs: Any, place: Place) -> None:
        """Counts a run of an operator whose results have no values."""
        with self._lock:
            self._operators.setdefault(place.op_id, _Operator(place)).add(1, [_Summary() for _ in outputs])

    def reset(self) -> None:
        self.reset_evidence()
        with self._lock:
            self._operators.clear()
            if self._recorder is not None:
                self._recorder.reset()
        self._skips.reset()

    def _rows(self, by: GroupBy) -> list[Row]:
        groups: dict[Place, _Operator] = {}
        with self._lock:
            for operator in sorted(
                [*self._operators.values(), *self._recorded()], key=lambda operator: operator.first_ns
            ):
                outputs = operator.outputs if by in ("id", "op") else [_Summary.all_of(operator.outputs)]
                place = operator.place.group(by)
                groups.setdefault(place, _Operator(place)).add(operator.calls, outputs)
        return [row for group in groups.values() for row in group.rows(numbered=by in ("id", "op"))]

    def _recorded(self) -> Iterator[_Operator]:
        for op_id, first_ns, calls, outputs in self._recorder.rows() if self._recorder is not None else ():
            yield _Operator(self._places[op_id], calls, [_Summary(*fields) for fields in outputs], first_ns)

    _values = (
        number_column("calls", "calls"),
        *(general_column(field, field) for field in ("mean", "std", "min", "max")),
        Column("zeros", lambda row: f"{row.sparsity:.1%}", field="sparsity"),
        number_column("NaN", "nans"),
        number_column("inf", "infs"),
    )
    _output = Column("out", lambda row: "" if row.output is None else f"{row.output}", field="output")
    _groupings = place_groupings(Row, _values, {"id": [_output], "op": [_output]}, sparsity="float64")


@dataclasses.dataclass(eq=False)
class _Operator:
    """The statistics of an operator, or of a group of them."""

    place: Place
    calls: int = 0
    outputs: list[_Summary] = dataclasses.field(default_factory=list)
    first_ns: int = dataclasses.field(default_factory=time.perf_counter_ns)  # when it ran first

    def add(self, calls: int, outputs: list[_Summary]) -> None:
        self.calls += calls
        self.outputs += [_Summary() for _ in outputs[len(self.outputs) :]]
        for summary, new in zip(self.outputs, outputs, strict=False):
            summary.merge(new)

    def rows(self, numbered: bool) -> list[Row]:
        if not self.outputs:
            return [_Summary().row(self.place, self.calls, None)]
        return [
            summary.row(self.place, self.calls, position if numbered else None)
            for position, summary in enumerate(self.outputs)
        ]


@dataclasses.dataclass(eq=False)
class _Summary:
    """Statistics of a set of elements; the last four cover the finite floating-point elements.

    tools/values/elements.cpp computes them, too.
    """

    elements: int = 0
    zeros: int = 0
    nans: int = 0
    infs: int = 0
    skipped: int = 0
    finite: int = 0
    min: float = math.inf
    max: float = -math.inf
    mean: float = 0.0
    squares: float = 0.0  # the sum of squared differences from the mean

    @classmethod
    def of(cls, output: Any, skips: Skips) -> _Summary:
        """The statistics of a tensor, or of the members of a list; empty for anything else."""
        summary = cls()
        if isinstance(output, (list, tuple)):
            for member in output:
                summary.merge(cls.of(member, skips))
        elif arrays_of(output) is not None:
            return skips.read(output, cls._counted) or cls(skipped=1)
        return summary

    @classmethod
    def all_of(cls, others: list[_Summary]) -> _Summary:
        summary = cls()
        for other in others:
            summary.merge(other)
        return summary

    def merge(self, other: _Summary) -> None:
        """Adds the elements of `other`.

        The update is that of T. F. Chan, G. H. Golub, R. J. LeVeque: Updating Formulae and a Pairwise Algorithm for
        Computing Sample Variances, Stanford STAN-CS-79-773, 1979. It never subtracts large sums from each other, so
        a small spread around a large mean keeps its precision.
        """
        self.elements += other.elements
        self.zeros += other.zeros
        self.nans += other.nans
        self.infs += other.infs
        self.skipped += other.skipped
        if not other.finite:
            return
        if not self.finite:
            self.finite, self.min, self.max = other.finite, other.min, other.max
            self.mean, self.squares = other.mean, other.squares
            return
        total = self.finite + other.finite
        step = other.mean - self.mean
        self.mean += step * other.finite / total
        self.squares += other.squares + step * step * self.finite * other.finite / total
        self.finite = total
        self.min = min(self.min, other.min)
        self.max = max(self.max, other.max)

    def row(self, place: Place, calls: int, position: int | None) -> Row:
        some = self.finite > 0
        return Row(
            *place,
            output=position,
            calls=calls,
            elements=self.elements,
            min=self.min if some else None,
            max=self.max if some else None,
            mean=self.mean if some else None,
            std=math.sqrt(self.squares / self.finite) if some else None,
            zeros=self.zeros,
            nans=self.nans,
            infs=self.infs,
            skipped=self.skipped,
        )

    @classmethod
    def _counted(cls, array: Any, arrays: Arrays) -> _Summary:
        summary = cls()
        summary._count(array, arrays)
        return summary

    def _count(self, array: Any, arrays: Arrays) -> None:
        xp = arrays.xp
        values = array if arrays.is_complex(array) else arrays.cast(array, xp.float64)
        self.elements = math.prod(values.shape)
        self.zeros = self.elements - int(xp.count_nonzero(values))
        if not arrays.is_floating(array):
            return
        if not xp.isfinite(values.sum()):
            self.nans, self.infs = int(xp.isnan(values).sum()), int(xp.isinf(values).sum())
            values = values[xp.isfinite(values)]
        self.finite = math.prod(values.shape)
        if self.finite:
            self.min, self.max = arrays.extremes(values)
            self.mean, variance = arrays.mean_and_variance(values)
            self.squares = variance * self.finite
