"""Rows of a diff: causes, and what only one of the runs has."""

from __future__ import annotations

import dataclasses
import re
from typing import Any, Literal

from amanda.toolkit.tables import Column, Grouping, fields_of, general_column, name_column, number_column

_DIGITS = re.compile(r"\d+\.\d{7,}(e-?\d+)?")

GroupBy = Literal["id", "change"]
Kind = Literal["operator", "input", "input not compared", "only in reference", "only in this run", "other count"]


LONE: tuple[Kind, ...] = ("only in reference", "only in this run", "other count")


@dataclasses.dataclass(frozen=True)
class Row:
    """A cause of a difference, at one operator of the program.

    ``kind``: "operator": its inputs agree and its results differ. "input": it got a tensor that differs, and that no
    operator made: a parameter, data, a gradient that a hook has changed. "input not compared": its results differ, and so
    may an input that cannot be read, which ``note`` names: it is the cause, or follows from one. The others: an operator
    that only one run has, or that ran more or less often.
    """

    kind: Kind
    name: str  # "aten::linear"
    backward_op: str  # "AddmmBackward0"; "" of a forward operator
    op_id: int
    module_path: str
    source: str  # file:line of the call
    runs: int  # in which it differed
    first_run: int | None  # the first of these, from 0 on
    output: int | None  # the position of the result that differs first; members of lists count
    dtype: str
    shape: tuple[int, ...] | None
    elements: int | None  # that differ, in the first run
    max_abs: float | None  # the largest difference, over all runs
    max_rel: float | None  # the same, divided by the reference's element
    note: str  # "eps: 1e-05 -> 1e-06", the names of inputs, another dtype or shape
    reference_ulps: float | None = None  # with float64=True: the reference's largest error, in units of the last place
    ulps: float | None = None  # this run's


@dataclasses.dataclass(frozen=True)
class Folded:
    """The operators with the same kind, type and note, with the fields that a `Row` has for one of them."""

    kind: Kind
    name: str
    backward_op: str
    where: str  # modules, with * for numbers in which they differ; lines, where there is no module
    note: str
    operators: int
    runs: int  # of all together
    first_run: int | None  # the earliest
    elements: int | None  # that differ, of all together
    max_abs: float | None
    max_rel: float | None
    dtype: str  # of the result that differs most
    shape: tuple[int, ...] | None
    reference_ulps: float | None = None
    ulps: float | None = None


def _what(row: Any) -> str:
    """The text of a row in a table; the note has all digits."""
    note = _DIGITS.sub(lambda found: f"{float(found[0]):.6g}", row.note)
    ulps = "" if row.ulps is None else f"{row.ulps:.3g} ulp off, reference {row.reference_ulps:.3g}"
    return ", ".join(filter(None, [note, ulps]))


def _shape(row: Any) -> str:
    return "" if row.shape is None else f"{row.dtype}{list(row.shape)}"


def _operator(row: Any) -> str:
    name = row.backward_op or row.name
    return str(name) if row.kind == "operator" else f"{name} ({row.kind})"


_RUNS = [number_column("runs", "runs"), number_column("first", "first_run"), number_column("elements", "elements")]
_SIZES = [general_column("max abs", "max_abs"), general_column("max rel", "max_rel")]
_RESULT = Column("result", _shape, left=True, field="shape")
COLUMNS = [
    name_column("id"),
    Column("cause", lambda row: row.backward_op or row.kind, left=True, field="kind"),
    Column("what", _what, left=True, folds=True, field="note", decides=True),
    *_RUNS,
    *_SIZES,
    _RESULT,
]
FOLDED_COLUMNS = [
    Column("operator", _operator, left=True, folds=True, field="name"),
    Column("where", lambda row: row.where, left=True, folds=True, field="where", decides=True),
    Column("what", _what, left=True, folds=True, field="note", decides=True),
    *_SIZES,
    number_column("operators", "operators"),
    *_RUNS,
    _RESULT,
]
GROUPINGS = {"id": Grouping(COLUMNS, fields_of(Row)), "change": Grouping(FOLDED_COLUMNS, fields_of(Folded))}
