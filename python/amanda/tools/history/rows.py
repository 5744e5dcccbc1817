"""Rows of a history, by series or by step."""

from __future__ import annotations

import array
import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from amanda.toolkit.tables import Column, Grouping, fields_of, general_column, number_column

from .series import Point, Series

GroupBy = Literal["series", "step"]


@dataclasses.dataclass(frozen=True)
class Row:
    """A series, or by "step" its value in one step."""

    tool: str  # "statistics", "gradients", "parameters", "scalars", or another tool's name
    name: str  # "aten::linear"; a parameter, "0.weight"; a scalar, "loss"
    op_id: int | None  # of an operator; else None
    module_path: str
    source: str  # file:line of the operator; else ""
    detail: str  # "output 1"
    quantity: str  # "mean"
    label: str  # of the table: module, operator and detail
    step: int | None  # by "step"; else None
    steps: int  # that have a value
    value: float  # by "series" the last one
    first: float
    min: float | None  # of the finite values; None if there are none
    max: float | None

    @classmethod
    def of(cls, series: Series, step: int | None, values: Sequence[float]) -> Row:
        finite = [value for value in values if math.isfinite(value)]
        return cls(
            **series._asdict(),
            label=series.label,
            step=step,
            steps=len(values),
            value=values[-1],
            first=values[0],
            min=min(finite) if finite else None,
            max=max(finite) if finite else None,
        )


@dataclasses.dataclass(frozen=True)
class StepValues:
    """The values of a step, in little memory."""

    number: int
    series: tuple[Series, ...]
    values: array.array[float]

    @classmethod
    def of(cls, number: int, points: Sequence[Point]) -> StepValues:
        return cls(number, tuple(series for series, _ in points), array.array("d", (value for _, value in points)))


def rows_of(steps: Sequence[StepValues], by: GroupBy) -> list[Row]:
    if by == "step":
        return [
            Row.of(series, step.number, [value])
            for step in steps
            for series, value in zip(step.series, step.values, strict=True)
        ]
    values: dict[Series, list[float]] = {}
    for step in steps:
        for series, value in zip(step.series, step.values, strict=True):
            values.setdefault(series, []).append(value)
    places = {name: place for place, name in enumerate(dict.fromkeys(series.name for series in values))}
    rows = (Row.of(series, None, of_series) for series, of_series in values.items())
    return sorted(rows, key=_order(len(steps), places))


def _order(steps: int, places: Mapping[str, int]) -> Callable[[Row], tuple[int, ...]]:
    """Puts first what is asked for first: losses, gradients, updates; last, what ran once, as the making of a model.

    Arguments:
        places: of parameters and operators among the others, by name.
    """

    def place(row: Row) -> tuple[int, ...]:
        if row.tool == "scalars":
            return (0, "loss" not in row.name.lower())
        if row.tool == "parameters" and row.quantity in _FIRST:
            return (1, places[row.name])
        once = row.steps == 1 < steps
        return (5 if once else 2 if row.tool == "parameters" else 3 if row.module_path else 4,)

    return place


def _quantity(row: Row) -> str:
    if row.tool == "scalars":
        return ""
    return row.quantity if row.tool == "parameters" else f"{row.tool} {row.quantity}"


_FIRST = ("gradient_norm", "update_ratio")  # of parameters


_LABEL = Column("series", lambda row: str(row.label), left=True, folds=True, field="label")
_QUANTITY = Column("quantity", lambda row: _quantity(row), left=True, field="quantity")
_FIGURES = [
    general_column(heading, field)._replace(decides=heading in ("first", "last"))
    for heading, field in (("first", "first"), ("last", "value"), ("min", "min"), ("max", "max"))
]
GROUPINGS = {
    "series": Grouping(
        [_LABEL, _QUANTITY, number_column("steps", "steps"), *_FIGURES],
        {**fields_of(Row, without=["step"]), "op_id": "UInt64"},
    ),
    "step": Grouping(
        [number_column("step", "step"), _LABEL, _QUANTITY, general_column("value", "value")],
        {**fields_of(Row, without=["steps", "first", "min", "max"]), "op_id": "UInt64"},
    ),
}
