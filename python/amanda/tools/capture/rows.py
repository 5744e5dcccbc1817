"""Rows of what was captured, and their columns."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal

from amanda.toolkit import Column, Grouping, Place, fields_of, number_column
from amanda.toolkit.frames import line_of_code

GroupBy = Literal["name", "op", "module", "line"]


@dataclasses.dataclass(frozen=True)
class Row:
    """A result that was kept, or what an operator type, a module or a line has in all."""

    name: str  # "encoder.layer.0:add[1]"; by "op", "module" or "line" that one
    op: str  # "aten::add.Tensor"; by "name" and "op"
    module_path: str  # by "name" and "module"
    source: str  # file:line of the call; by "name" and "line"
    shape: str  # of the latest run: "[2, 7, 16]", of several tensors one after the other; by "name"
    dtype: str  # "float32"; by "name"
    runs: int  # how many results were kept
    gradients: int  # how many of them have a gradient
    bytes: int  # of results and gradients
    kept: str  # the latest result: "cpu", "cuda:0", or its file; by "name"

    def group(self, by: GroupBy) -> Row:
        place = Place(None, self.op, self.module_path, self.source).group(by)
        op = self.op if by == "op" else ""
        return dataclasses.replace(
            self,
            name=place.name,
            op=op,
            module_path=place.module_path,
            source=place.source,
            shape="",
            dtype="",
            kept="",
        )


def grouped(rows: Sequence[Row], by: GroupBy) -> list[Row]:
    """The rows of groups, in the order of their first members."""
    if by == "name":
        return list(rows)
    groups: dict[str, Row] = {}
    for row in rows:
        one = row.group(by)
        other = groups.get(one.name)
        if other is not None:
            sums = {field: getattr(one, field) + getattr(other, field) for field in ("runs", "gradients", "bytes")}
            one = dataclasses.replace(one, **sums)
        groups[one.name] = one
    return list(groups.values())


def _text(heading: str, field: str, **options: Any) -> Column:
    return Column(heading, lambda row: str(getattr(row, field)), left=True, field=field, **options)


_NUMBERS = (
    number_column("runs", "runs"),
    number_column("gradients", "gradients"),
    number_column("MB", "bytes", 1e6, digits=3),
)
_NAMES = (
    _text("result", "name", folds=True),
    Column("line", lambda row: line_of_code(row.source), left=True, shortens=True, field="source"),
    _text("shape", "shape"),
    _text("dtype", "dtype"),
)
_ONLY_BY_NAME = ("op", "module_path", "source", "shape", "dtype", "kept")

GROUPINGS = {
    "name": Grouping((*_NAMES, *_NUMBERS, _text("kept", "kept", shortens=True)), fields_of(Row)),
    **{
        by: Grouping((_text(by, "name", folds=True), *_NUMBERS), fields_of(Row, without=_ONLY_BY_NAME))
        for by in ("op", "module", "line")
    },
}
