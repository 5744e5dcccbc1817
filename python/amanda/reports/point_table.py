"""PointTable: the operators that a program runs, and where."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Literal

from amanda.reports.data_frame import data_frame, fields_of
from amanda.reports.rich_table import Column, plain_table
from amanda.reports.source_files import line_of_code
from amanda.reports.terminal import terminal_width

if TYPE_CHECKING:
    import pandas

Sort = Literal["order", "runs", "operator", "module"]
SORTS: tuple[Sort, ...] = ("order", "runs", "operator", "module")


@dataclasses.dataclass(frozen=True)
class Operand:
    """An input or output. ``str(operand)`` is "float32[8, 3]" for a tensor."""

    name: str  # of the position, as the schema has it; ""
    kind: Literal["none", "tensor", "tensors", "number", "numbers", "other"]
    dtype: str  # "float32"; "" where it is not known, or differs among numbers
    shape: tuple[int | None, ...] | None  # of a tensor; None if it is not known
    device: str
    elements: tuple[Operand, ...]  # of a list of tensors

    def __str__(self) -> str:
        if self.kind == "tensor":
            shape = "?" if self.shape is None else ", ".join("?" if size is None else str(size) for size in self.shape)
            return f"{self.dtype}[{shape}]"
        if self.kind == "tensors":
            return f"({', '.join(map(str, self.elements))})"
        return "None" if self.kind == "none" else self.dtype or self.kind


@dataclasses.dataclass(frozen=True)
class Point:
    """An operator at its place in the program. The fields say the same as the properties of a context."""

    operator: str  # "aten::add.Tensor"
    backward_operator: str  # "AddBackward0"; "" for a forward operator
    op_id: int  # of the forward operator
    backward_op_id: int | None
    module_path: str
    source: str
    inputs: tuple[Operand, ...]  # of the first run; of a backward operator: its grad_outputs
    outputs: tuple[Operand, ...] | None  # of a backward operator: grad_inputs. None if the first run raised
    runs: int


class PointTable:
    """The points of a program. From `amanda.points`.

    ``print(points)`` shows it as a table; so do notebooks. It does not change any more.
    """

    def __init__(self, rows: Iterable[Point]) -> None:
        self._rows = _in_order(rows)

    def rows(self) -> list[Point]:
        """One row for each point: forward operators in the order of their first runs, each followed by its backward
        operators."""
        return list(self._rows)

    def table(self, sort: Sort = "order", top: int | None = None, width: int | None = None) -> str:
        """The rows as text, and a line with their sums. It shows tensors only; `rows` has the other operands, too.

        Arguments:
            sort: "order": as `rows`; "runs": what ran most often first; "operator", "module": by name.
            top: the number of rows; all by default.
            width: the width of the table, in characters. Long names are shortened from the left, with an ellipsis;
                columns for which there is no room are named below it. By default, it is as wide as its content.

        Raises:
            ValueError: there is no such order.
        """
        if sort not in SORTS:
            expected = '", "'.join(SORTS[:-1])
            raise ValueError(f'[points] rows are sorted by "{expected}" or "{SORTS[-1]}", got {sort!r}')
        rows = self._sorted(sort)
        lines = [plain_table(_columns(sort == "order"), rows[:top]).text(width)] if rows else []
        if top is not None and len(rows) > top:
            lines.append(f"and {len(rows) - top} more")
        return "\n".join([*lines, self._sums()])

    def to_pandas(self) -> pandas.DataFrame:
        """The rows as a DataFrame, one column for each field.

        Raises:
            ImportError: pandas is not installed.
        """
        return data_frame("points", self._rows, {**fields_of(Point), "backward_op_id": "UInt64"})

    def __repr__(self) -> str:
        return f"<amanda points: {self._sums()}>"

    def __str__(self) -> str:
        return self.table(width=terminal_width())

    def _repr_html_(self) -> str:
        return plain_table(_columns(indented=True), self._rows, self._sums())._repr_html_()

    def _sorted(self, sort: Sort) -> Sequence[Point]:
        if sort == "runs":
            return sorted(self._rows, key=lambda row: -row.runs)
        if sort == "operator":
            return sorted(self._rows, key=lambda row: (row.operator, row.backward_operator))
        return self._rows if sort == "order" else sorted(self._rows, key=lambda row: row.module_path)

    def _sums(self) -> str:
        if not self._rows:
            return "no operators ran"
        backward = [row for row in self._rows if row.backward_operator]
        forward = len(self._rows) - len(backward)
        texts = [_counted(forward, "operator")] + [_counted(len(backward), "backward operator")] * bool(backward)
        return f"{', '.join(texts)}, {_counted(sum(row.runs for row in self._rows), 'run')}"


def _in_order(rows: Iterable[Point]) -> tuple[Point, ...]:
    rows = tuple(rows)
    first: dict[tuple[int, str], int] = {}
    for place, row in enumerate(rows):
        if not row.backward_operator or (row.op_id, row.operator) not in first:
            first.setdefault((row.op_id, row.operator), place)
    return tuple(sorted(rows, key=lambda row: (first[row.op_id, row.operator], bool(row.backward_operator))))


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count != 1)}"


def _columns(indented: bool) -> tuple[Column, ...]:
    """`indented`: a backward operator stands below its forward operator."""
    return (
        Column("runs", lambda row: str(row.runs)),
        Column("operator", lambda row: _operator(row, indented), left=True, decides=True),
        Column("module", lambda row: row.module_path, left=True, shortens=True, decides=True),
        Column("line", lambda row: line_of_code(row.source), left=True, shortens=True, decides=True),
        Column("inputs", lambda row: _tensors(row.inputs), left=True, shortens=True),
        Column(
            "outputs",
            lambda row: "(raised)" if row.outputs is None else _tensors(row.outputs),
            left=True,
            shortens=True,
        ),
        Column("id", lambda row: f"{row.backward_op_id or row.op_id:#x}", left=True),
    )


def _operator(row: Point, indented: bool) -> str:
    if not row.backward_operator:
        return row.operator
    return f"  {row.backward_operator}" if indented else f"{row.backward_operator} of {row.operator}"


def _tensors(operands: Iterable[Operand]) -> str:
    shown = [operand for operand in operands if operand.kind in ("tensor", "tensors")]
    return ", ".join(f"{operand.name} {operand}".lstrip() for operand in shown)
