"""OpStatistics: how often every operator runs, and the range, mean, spread, zeros and NaNs of its outputs."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

import torch

from amanda import _fork
from amanda.drivers.torch import port
from amanda.op_context import OpContext
from amanda.reports.data_frame import data_frame, field_names
from amanda.tool import Tool
from amanda.tools import _reading

if TYPE_CHECKING:
    import pandas


@dataclasses.dataclass(frozen=True)
class Row:
    """One output of one operator over all its runs; an operator that returns nothing has one row with no output.

    `min`, `max`, `mean` and `std` cover the finite elements of floating-point outputs; None if there was none.
    `std` is the population standard deviation: it divides by the number of elements, not by one less.
    """

    op_id: int
    name: str  # "aten::linear"
    module_path: str
    source: str  # file:line of the call
    output: int | None  # the position; a list of tensors is one position
    calls: int  # runs of the operator
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


class OpStatistics(Tool):
    """Collects statistics of all outermost operators' outputs, over all runs, scopes and threads in which it is used::

        statistics = OpStatistics()
        with amanda.apply(statistics):
            train_one_epoch(model)
        statistics.to_pandas().sort_values("sparsity")

    Outputs are merged run by run; none is kept. Each is temporarily converted to float64, 8 bytes per element. On CUDA
    the host waits for it.

    For integer, boolean and complex outputs, only elements and zeros are counted. Only calls are counted for sparse,
    quantized and nested tensors, tensors without data (``device="meta"``), types that torch cannot convert (int4), and
    subclasses with a `__torch_dispatch__` of their own; these count as `skipped`. Inside `torch.vmap` the elements are
    those of all samples.

    An operator that raises is not counted. An operator that checkpointing recomputes is counted again.
    """

    def __init__(self) -> None:
        super().__init__()
        self._operators: dict[int, _Operator] = {}
        self._skips = _reading.Skips("statistics")
        self._lock = _fork.lock()  # guards the fields above
        self.add_inst_for_op(self._analyze)

    def _analyze(self, context: OpContext) -> None:
        operator = _Operator(context.op_id, context.op.name, context.module_path, context.source)
        with self._lock:
            operator = self._operators.setdefault(context.op_id, operator)
        context.insert_after_op(self._record, operator=operator)

    def _record(self, *outputs: Any, operator: _Operator) -> None:
        with port.WithoutTorchFunction():
            # Not under the lock: this takes most of the time.
            found = [_Summary.of(output, self._skips) for output in outputs]
        with self._lock:
            operator.calls += 1
            if operator.outputs:
                for summary, new in zip(operator.outputs, found, strict=True):
                    summary.merge(new)
            else:
                operator.outputs = found

    @property
    def skipped(self) -> dict[str, int]:
        """How many outputs could not be read, by reason."""
        return self._skips.counts()

    def rows(self) -> list[Row]:
        """The statistics so far, in the order in which the operators first ran."""
        with self._lock:
            return [row for operator in self._operators.values() if operator.calls for row in operator.rows()]

    def to_pandas(self) -> pandas.DataFrame:
        """`rows` as a data frame with a column for each field and `sparsity`; None becomes a missing value.

        Raises:
            ImportError: pandas is not installed.
        """
        whole = ("calls", "elements", "zeros", "nans", "infs", "skipped")
        counts: dict[str, str] = dict.fromkeys(whole, "int64")
        values: dict[str, str] = dict.fromkeys(("min", "max", "mean", "std", "sparsity"), "float64")
        types = {"op_id": "uint64", "output": "Int64"} | counts | values
        return data_frame("statistics", self.rows(), [*field_names(Row), "sparsity"], types)


@dataclasses.dataclass(eq=False)
class _Operator:
    id: int
    name: str
    module_path: str
    source: str
    calls: int = 0
    outputs: list[_Summary] = dataclasses.field(default_factory=list)

    def rows(self) -> list[Row]:
        if not self.outputs:
            return [_Summary().row(self, None)]
        return [summary.row(self, position) for position, summary in enumerate(self.outputs)]


@dataclasses.dataclass(eq=False)
class _Summary:
    """Statistics of a set of elements; the last four cover the finite floating-point elements."""

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
    def of(cls, output: Any, skips: _reading.Skips) -> _Summary:
        """The statistics of a tensor, or of the members of a list; empty for anything else."""
        summary = cls()
        if isinstance(output, (list, tuple)):
            for member in output:
                summary.merge(cls.of(member, skips))
        elif isinstance(output, torch.Tensor):
            return skips.read(output, cls._counted) or cls(skipped=1)
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
        total = self.finite + other.finite
        step = other.mean - self.mean
        self.mean += step * other.finite / total
        self.squares += other.squares + step * step * self.finite * other.finite / total
        self.finite = total
        self.min = min(self.min, other.min)
        self.max = max(self.max, other.max)

    def row(self, operator: _Operator, position: int | None) -> Row:
        some = self.finite > 0
        return Row(
            op_id=operator.id,
            name=operator.name,
            module_path=operator.module_path,
            source=operator.source,
            output=position,
            calls=operator.calls,
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
    def _counted(cls, tensor: torch.Tensor) -> _Summary:
        summary = cls()
        summary._count(tensor)
        return summary

    def _count(self, tensor: torch.Tensor) -> None:
        values = tensor if tensor.is_complex() else tensor.double()
        self.elements = values.numel()
        self.zeros = self.elements - int(values.count_nonzero())
        if not tensor.is_floating_point():
            return
        if not values.sum().isfinite():
            self.nans, self.infs = int(values.isnan().sum()), int(values.isinf().sum())
            values = values[values.isfinite()]
        self.finite = values.numel()
        if self.finite:
            self.min, self.max = (extreme.item() for extreme in values.aminmax())
            variance, mean = torch.var_mean(values, correction=0)  # Welford's algorithm
            self.mean, self.squares = mean.item(), variance.item() * self.finite
