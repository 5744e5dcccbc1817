"""Series: a quantity that has a value in each step."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from amanda.toolkit import Place, Results
from amanda.toolkit.frames import short_line
from amanda.tools.gradients import GradientStatistics
from amanda.tools.gradients import Row as GradientRow
from amanda.tools.statistics import OpStatistics
from amanda.tools.statistics import Row as OutputRow


class Series(NamedTuple):
    """A measured quantity, and its place."""

    tool: str  # "statistics", "gradients", "parameters", "scalars", or another tool's name
    name: str  # the operator, "aten::linear"; the parameter, "0.weight"; the scalar, "loss"
    op_id: int | None
    module_path: str
    source: str
    detail: str  # "output 1"; it distinguishes the series from others of that operator
    quantity: str  # "mean"

    @property
    def label(self) -> str:
        """The measured thing, in words; several operators of a module may have the same label."""
        if self.tool in ("parameters", "scalars"):
            return self.name
        parts = [self.module_path, self.name.partition("::")[2] or self.name, self.detail.replace("output 0", "")]
        return " ".join(filter(None, parts))


Point = tuple[Series, float]


class Tags:
    """Names of series that are unique, and the same in each run of a program. TensorBoard groups by what is before "/"."""

    def __init__(self) -> None:
        self._tags: dict[Series, str] = {}
        self._owners: dict[str, Series] = {}  # by tag

    def of(self, series: Series) -> str:
        if series not in self._tags:
            group = f"{series.tool}.{series.quantity}/" if series.tool != "scalars" else ""
            name = f"{group}{series.label}"
            line = f"{name} {short_line(series.source)}"
            choices = itertools.chain([name, line], (f"{line} #{number}" for number in itertools.count(2)))
            tag = next(choice for choice in choices if choice not in self._owners)
            self._tags[series], self._owners[tag] = tag, series
        return self._tags[series]


def points_of(
    tool: Results[Any, Any], rows: Sequence[Any], left_out: set[int | None], loss_scale: float = 1.0
) -> Iterator[Point]:
    """The figures in the rows of a tool's first grouping. `left_out`: ids of operators that do not count. `loss_scale`: by
    what the loss, and so each gradient, was multiplied."""
    if isinstance(tool, OpStatistics):
        yield from _of_outputs(rows, left_out)
    elif isinstance(tool, GradientStatistics):
        yield from _of_gradients(rows, left_out, loss_scale)
    else:
        yield from _of_any(tool, rows)


def _of_outputs(rows: Sequence[OutputRow], left_out: set[int | None]) -> Iterator[Point]:
    for row in rows:
        if row.output is None or row.op_id in left_out:
            continue
        quantities = {
            "mean": row.mean,
            "std": row.std,
            "min": row.min,
            "max": row.max,
            "norm": _norm(row),
            "sparsity": row.sparsity if row.elements else None,
            "nans": float(row.nans) or None,
            "infs": float(row.infs) or None,
        }
        for quantity, value in quantities.items():
            if value is not None:
                yield _series("statistics", row.place, f"output {row.output}", quantity), value


def _norm(row: OutputRow) -> float | None:
    """The Euclidean norm of the finite elements of all runs: sqrt(n (mean^2 + std^2))."""
    if row.mean is None or row.std is None:
        return None
    return float(((row.elements - row.nans - row.infs) * (row.mean**2 + row.std**2)) ** 0.5)


def _of_gradients(rows: Sequence[GradientRow], left_out: set[int | None], loss_scale: float) -> Iterator[Point]:
    """For each operator, the gradients of its results: those that its first backward operator receives."""
    first: dict[int | None, int | None] = {}
    for row in rows:
        if row.side != "grad_output" or row.backward_op == "AccumulateGrad" or row.op_id in left_out:
            continue
        if first.setdefault(row.op_id, row.backward_op_id) != row.backward_op_id:
            continue
        norm = norm_of(row)
        if norm is not None:
            yield _series("gradients", row.place, f"output {row.position}", "norm"), norm / loss_scale


def norm_of(row: GradientRow) -> float | None:
    """The mean over the step's runs, or a value that is not finite if one was not."""
    if not row.nonfinite:
        return row.mean
    return row.last if row.last is not None and not math.isfinite(row.last) else math.nan


def _of_any(tool: Results[Any, Any], rows: Sequence[Any]) -> Iterator[Point]:
    """All numbers in the rows of a tool."""
    (fields, *_) = (grouping.fields for grouping in tool._groupings.values())
    numbers = [name for name, dtype in fields.items() if dtype in ("int64", "Int64", "float64")]
    texts = [name for name, dtype in fields.items() if dtype is None and name not in ("name", "module_path", "source")]
    for row in rows:
        texts_of_place = (getattr(row, field, "") for field in ("name", "module_path", "source"))
        place = Place(getattr(row, "op_id", None), *texts_of_place)
        detail = " ".join(filter(None, (str(getattr(row, text)) for text in texts)))
        for quantity in numbers:
            value = getattr(row, quantity)
            if value is not None:
                yield _series(tool._speaker, place, detail, quantity), float(value)


def _series(tool: str, place: Place, detail: str, quantity: str) -> Series:
    return Series(tool, place.name, place.op_id, place.module_path, place.source, detail, quantity)


def of_parameter(name: str, quantity: str) -> Series:
    return Series("parameters", name, None, name.rpartition(".")[0], "", "", quantity)


def scalar(name: str) -> Series:
    return Series("scalars", name, None, "", "", "", "value")
