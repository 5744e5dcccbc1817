"""Rows of a Profile, and the columns of its tables."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Literal

from amanda.toolkit.durations import Durations
from amanda.toolkit.places import PLACE_FIELDS, Place
from amanda.toolkit.tables import Column, Grouping, fields_of, name_column, number_column, percentage_column

GroupBy = Literal["op", "module", "line", "user_line", "id"]


@dataclasses.dataclass(frozen=True)
class Row:
    """All runs of one operator type, or of all operators of one module or line, or of one operator by "id".

    Fields that begin with `backward` are about the backward operators that these operators created; without
    `backward=True` they are 0.
    """

    name: str  # "aten::conv2d", or a module path, or a line; "" for operators outside modules
    calls: int  # forward
    total_ns: int  # forward and backward
    median_ns: float  # of a forward call, at most 0.4% off; NaN if there was none
    output_bytes: int  # of all forward calls together
    share: float  # of the time of all operators, forward and backward, 0 to 1
    op_id: int | None = None  # by "id"; else None
    module_path: str = ""  # by "id" and "module"
    source: str = ""  # file:line of the call, by "id" and "line"
    backward_calls: int = 0  # runs of backward operators; one operator may create several
    backward_ns: int = 0
    backward_bytes: int = 0  # of the gradients that they returned

    @property
    def forward_ns(self) -> int:
        """The time of all forward calls together, in nanoseconds."""
        return self.total_ns - self.backward_ns

    @property
    def mean_ns(self) -> float:
        """The mean time of a forward call, in nanoseconds; NaN if there was none."""
        return self.forward_ns / self.calls if self.calls else math.nan


@dataclasses.dataclass(eq=False)
class Measured:
    """The runs of one operator at one place in the program, or of one of its backward operators."""

    is_backward: bool
    durations: Durations
    output_bytes: int


def row_of(place: Place, group: Sequence[Measured], all_ns: int) -> Row:
    """The row of a group. `all_ns`: the time of all operators."""
    forward = [measured for measured in group if not measured.is_backward]
    backward = [measured for measured in group if measured.is_backward]
    durations = Durations.all_of(measured.durations for measured in forward)
    backward_ns = sum(measured.durations.total_ns for measured in backward)
    total_ns = durations.total_ns + backward_ns
    return Row(
        name=place.name,
        calls=durations.count,
        total_ns=total_ns,
        median_ns=durations.median_ns(),
        output_bytes=sum(measured.output_bytes for measured in forward),
        share=total_ns / all_ns if all_ns else 0.0,
        op_id=place.op_id,
        module_path=place.module_path,
        source=place.source,
        backward_calls=sum(measured.durations.count for measured in backward),
        backward_ns=backward_ns,
        backward_bytes=sum(measured.output_bytes for measured in backward),
    )


def sum_of(rows: Sequence[Row]) -> Row:
    """The total of a table, without a median."""
    return Row(
        name="",
        calls=sum(row.calls for row in rows),
        total_ns=sum(row.total_ns for row in rows),
        median_ns=math.nan,
        output_bytes=sum(row.output_bytes for row in rows),
        share=sum(row.share for row in rows),
        backward_calls=sum(row.backward_calls for row in rows),
        backward_ns=sum(row.backward_ns for row in rows),
        backward_bytes=sum(row.backward_bytes for row in rows),
    )


def costs_of(rows: Sequence[Row], backward: bool) -> str:
    """Their time as text: "12.30 ms (8.10 of them backward)"."""
    total = sum_of(rows)
    text = f"{total.total_ns / 1e6:.2f} ms"
    return f"{text} ({total.backward_ns / 1e6:.2f} of them backward)" if backward else text


_CALLS, _OUTPUT = number_column("calls", "calls"), number_column("output MB", "output_bytes", 1e6, 2)
_TOTAL = number_column("total ms", "total_ns", 1e6, 2)._replace(decides=True)
_SHARE = percentage_column("share", "share")._replace(decides=True)
_BOTH = (number_column("forward ms", "forward_ns", 1e6, 2), number_column("backward ms", "backward_ns", 1e6, 2))
_GRADIENT = number_column("gradient MB", "backward_bytes", 1e6, 2)

FORWARD_COLUMNS: Sequence[Column] = (
    _CALLS,
    _TOTAL,
    number_column("mean µs", "mean_ns", 1e3, 1),
    number_column("median µs", "median_ns", 1e3, 1),
    _SHARE,
    _OUTPUT,
)
BOTH_COLUMNS: Sequence[Column] = (_CALLS, _TOTAL, *_BOTH, _SHARE, _OUTPUT, _GRADIENT)

LISTING_COLUMNS: Sequence[Column] = (_CALLS, _TOTAL._replace(heading="ms"), _SHARE, _OUTPUT)
"""The columns next to source code."""
BOTH_LISTING_COLUMNS: Sequence[Column] = (_CALLS, *_BOTH, _SHARE, _OUTPUT)

_FIELDS = fields_of(Row, without=PLACE_FIELDS, mean_ns="float64", forward_ns="int64")
_PLACES = ("op", "module", "line", "user_line")
GROUPINGS: Mapping[str, Grouping] = {
    **{by: Grouping((name_column(by), *FORWARD_COLUMNS), _FIELDS, sum_of) for by in _PLACES},
    "id": Grouping(
        (name_column("id"), *FORWARD_COLUMNS), fields_of(Row, mean_ns="float64", forward_ns="int64"), sum_of
    ),
}
