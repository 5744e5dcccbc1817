"""ScopeDescription: what a scope's tools have scheduled, operator by operator."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from amanda.reports.data_frame import data_frame, fields_of
from amanda.reports.rich_table import Column, plain_table
from amanda.reports.source_files import line_of_code
from amanda.reports.terminal import terminal_width

if TYPE_CHECKING:
    import pandas

    from amanda import _core

Sort = Literal["order", "operator", "module", "tool"]


@dataclasses.dataclass(frozen=True)
class ScheduledRoutine:
    """A routine that runs at an operator. The fields say the same as the properties of a context."""

    operator: str  # "aten::add.Tensor"
    backward_operator: str  # "AddBackward0"; "" for a forward operator
    op_id: int  # of the forward operator
    backward_op_id: int | None
    module_path: str
    source: str
    phase: Literal["forward", "backward"]  # "backward" at a forward operator: it runs at each backward operator of that
    when: Literal["before", "replace", "after"]
    tool: str
    routine: str
    operands: tuple[str | int, ...] | None  # those that the routine gets, by name or by position; None means all


class ScopeDescription:
    """The routines that the analyses of a scope have scheduled. From `Scope.describe`.

    ``print(description)`` shows it as a table; so do notebooks. It does not change any more.
    """

    def __init__(self, rows: Sequence[ScheduledRoutine], stopped: Sequence[str]) -> None:
        self._rows = tuple(rows)
        self.stopped = tuple(stopped)
        """The names of the tools that run no more in the scope: they failed under ``on_error="disable"``."""

    def rows(self) -> list[ScheduledRoutine]:
        """One row for each routine: operators in the order in which they were first analyzed, and the routines of an
        operator in the order in which they run. If there are several replacements, each wraps the ones before it."""
        return list(self._rows)

    def table(self, sort: Sort = "order", top: int | None = None, width: int | None = None) -> str:
        """The rows as text, with an operator's name and place on its first line only.

        Arguments:
            sort: the column to sort by; "order" is the order of `rows`.
            top: the number of rows; all by default.
            width: the width of the table, in characters. Long names are shortened from the left, with an ellipsis;
                columns for which there is no room are named below it. By default, it is as wide as its content.

        Raises:
            ValueError: there is no such order.
        """
        if sort not in ("order", *_SORTS):
            raise ValueError(f'[scope] rows are sorted by "order", "operator", "module" or "tool", got {sort!r}')
        rows = self.rows() if sort == "order" else sorted(self._rows, key=_SORTS[sort])
        lines = [plain_table(_COLUMNS, _shown(rows[:top])).text(width)] if rows else ["nothing is scheduled"]
        if top is not None and len(rows) > top:
            lines.append(f"and {len(rows) - top} more")
        return "\n".join([*lines, *self._remarks()])

    def to_pandas(self) -> pandas.DataFrame:
        """The rows as a DataFrame, one column for each field.

        Raises:
            ImportError: pandas is not installed.
        """
        return data_frame("scope", self._rows, {**fields_of(ScheduledRoutine), "backward_op_id": "UInt64"})

    def __repr__(self) -> str:
        places = {(row.op_id, row.backward_op_id) for row in self._rows}
        return f"<amanda scope description: {len(self._rows)} routines at {len(places)} operators>"

    def __str__(self) -> str:
        return self.table(width=terminal_width())

    def _repr_html_(self) -> str:
        return plain_table(_COLUMNS, _shown(self._rows), "; ".join(self._remarks()))._repr_html_()

    def _remarks(self) -> list[str]:
        return [f"stopped after a failure: {', '.join(self.stopped)}"] if self.stopped else []


def description_of(actions: Sequence[_core.ActionDescription], stopped: Sequence[str]) -> ScopeDescription:
    """For scopes: the description of what the core lists."""
    return ScopeDescription([_row(action) for action in actions], stopped)


def _row(action: _core.ActionDescription) -> ScheduledRoutine:
    names = [field.name for field in dataclasses.fields(ScheduledRoutine)]
    values = {name: getattr(action, name) for name in names}
    operands = values.pop("operands")
    return ScheduledRoutine(**values, operands=None if operands is None else tuple(operands))


@dataclasses.dataclass(frozen=True)
class _Line:
    row: ScheduledRoutine
    repeats: bool  # the operator of the line above


def _shown(rows: Sequence[ScheduledRoutine]) -> list[_Line]:
    lines: list[_Line] = []
    for row in rows:
        above = lines[-1].row if lines else None
        lines.append(_Line(row, above is not None and _place(above) == _place(row)))
    return lines


def _place(row: ScheduledRoutine) -> tuple[object, ...]:
    return row.op_id, row.backward_op_id, row.operator, row.backward_operator


def _operator(row: ScheduledRoutine) -> str:
    return f"{row.backward_operator} of {row.operator}" if row.backward_operator else row.operator


def _when(row: ScheduledRoutine) -> str:
    when = "in place" if row.when == "replace" else row.when
    later = row.phase == "backward" and not row.backward_operator
    return f"{when}{' of' * (row.when == 'replace')} each backward operator" if later else when


def _operands(row: ScheduledRoutine) -> str:
    outputs = row.when == "after"
    side = (
        ("grad_inputs" if outputs else "grad_outputs")
        if row.phase == "backward"
        else "outputs"
        if outputs
        else "inputs"
    )
    if row.operands is None:
        return f"all {side}"
    return f"{side} {', '.join(map(str, row.operands))}" if row.operands else "none"


_SORTS = {
    "operator": lambda row: (row.operator, row.backward_operator),
    "module": lambda row: row.module_path,
    "tool": lambda row: row.tool,
}
_COLUMNS = (
    Column("operator", lambda line: "" if line.repeats else _operator(line.row), left=True),
    Column("module", lambda line: "" if line.repeats else line.row.module_path, left=True, shortens=True),
    Column("line", lambda line: "" if line.repeats else line_of_code(line.row.source), left=True, shortens=True),
    Column("when", lambda line: _when(line.row), left=True),
    Column("tool", lambda line: line.row.tool, left=True),
    Column("routine", lambda line: line.row.routine, left=True),
    Column("gets", lambda line: _operands(line.row), left=True),
    Column("id", lambda line: "" if line.repeats else f"{line.row.backward_op_id or line.row.op_id:#x}", left=True),
)
