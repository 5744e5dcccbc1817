"""Rows of a trace, and their columns."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal

from amanda.toolkit import Column, Place, general_column, name_column, number_column

from .values import Values

GroupBy = Literal["id", "op", "module", "line", "step", "rank"]
Aggregate = Literal["count", "last", "min", "max", "mean", "quantiles", "histogram"]
AGGREGATES: tuple[Aggregate, ...] = ("count", "last", "min", "max", "mean", "quantiles", "histogram")
DEFAULT: tuple[Aggregate, ...] = ("count", "last", "min", "max", "mean")

_BARS = " ▁▂▃▄▅▆▇█"


@dataclasses.dataclass(frozen=True)
class Row:
    """The values of one expression, at one operator, or at all operators of a group.

    `min`, `max`, `mean`, quantiles and the histogram cover the finite values; None if there was none, and where they were
    not asked for.
    """

    expression: str
    name: str  # "aten::linear"; by "module", "line", "step" or "rank" that one
    op_id: int | None  # by "id"; else None
    module_path: str  # by "id" and "module"; else ""
    source: str  # file:line of the call, by "id" and "line"; else ""
    step: int | None  # by "step": the number of the operator's execution, from 0 on; else None
    rank: int  # of the process, in torch.distributed
    count: int
    nonfinite: int  # values that were NaN or infinite
    last: float | None  # the latest value, also NaN and infinity
    min: float | None
    max: float | None
    mean: float | None
    p5: float | None  # quantiles, with the aggregate "quantiles"
    p50: float | None
    p95: float | None
    histogram: tuple[int, ...] | None  # counts in 16 equal parts from `min` to `max`, with the aggregate "histogram"
    errors: int  # runs in which the expression failed

    @classmethod
    def of(cls, expression: str, place: Place, step: int | None, rank: int, values: Values) -> Row:
        some = values.count > values.nonfinite
        return cls(
            expression,
            place.name,
            place.op_id,
            place.module_path,
            place.source,
            step,
            rank,
            count=values.count,
            nonfinite=values.nonfinite,
            last=values.last if values.count else None,
            min=values.min if some else None,
            max=values.max if some else None,
            mean=values.total / (values.count - values.nonfinite) if some else None,
            p5=values.quantile(0.05),
            p50=values.quantile(0.5),
            p95=values.quantile(0.95),
            histogram=values.histogram(),
            errors=values.errors,
        )


def columns(by: str, aggregate: Sequence[Aggregate], several: bool) -> list[Column]:
    """The columns of tables. `several`: there is more than one expression."""
    first = (
        name_column(by) if by in ("id", "op", "module", "line") else Column(by, lambda row: str(row.name), field="name")
    )
    expression = Column("expression", lambda row: str(row.expression), left=True, field="expression")
    found: list[Column] = [first, *([expression] if several else [])]
    for name in aggregate:
        if name == "count":
            found.append(number_column("count", "count"))
        elif name == "quantiles":
            found += [general_column(f"{q}%", f"p{q}") for q in (5, 50, 95)]
        elif name == "histogram":
            found.append(Column("histogram", _bars, left=True))
        else:
            found.append(general_column(name, name))
    return [*found, Column("not finite", lambda row: str(row.nonfinite or ""), field="nonfinite")]


def _bars(row: Any) -> str:
    most = max(row.histogram or (0,))
    return "".join(_BARS[-(-count * (len(_BARS) - 1) // most)] for count in row.histogram or ()) if most else ""
