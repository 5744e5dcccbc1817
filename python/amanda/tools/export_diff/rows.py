"""Rows: the values of a file that were compared with the program's, and those that were not."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

from amanda.toolkit import Column, Grouping, fields_of, general_column, name_column, number_column

MOST_LISTED = 3
GroupBy = Literal["cause", "value", "unmatched", "form"]


@dataclasses.dataclass(frozen=True)
class Row:
    """A value of the file, and the operator of the program that made its counterpart."""

    op_id: int | None
    name: str  # "aten::layer_norm"; "" of an output of the model that no operator was found for
    module_path: str
    source: str  # file:line of the call in the program
    value: str  # its name in the file
    nodes: tuple[str, ...]  # names of the nodes that compute it from the nearest references
    op_types: tuple[str, ...]  # their types
    error: float  # the norm of the difference, relative to that of the reference; the largest of all calls
    max_abs: float | None  # the largest difference of an element; None if shapes differ
    tolerance: float
    calls: int  # in which it was compared
    differs: int  # calls in which the error is above the tolerance
    dtype: str  # of the file's value
    shape: tuple[int, ...]
    note: str


@dataclasses.dataclass(frozen=True)
class Unmatched:
    """A value of the file without a counterpart. Its nodes are compared as a part of the values that they lead to."""

    value: str
    op: str  # of the exported program: "linear"; by module, the type of the last node
    module_path: str
    why: str


@dataclasses.dataclass(frozen=True)
class Form:
    """An operator of the program, or an output of the model that no operator was found for, in three forms."""

    op_id: int | None
    name: str  # "aten::linear"
    module_path: str
    source: str  # file:line of the call in the program
    value: str  # the name of its result in the file
    program: tuple[str, ...]  # the operators of the program that compute it, from the nearest results of other rows
    exported: tuple[str, ...]  # those of the .pt2 file; empty if none is given, or no counterpart was found
    written: tuple[str, ...]  # types of the nodes that compute it in the file, from the nearest values of other rows
    optimized: tuple[str, ...]  # types of the nodes that ONNX Runtime makes of them; empty if it needs none
    fused_with: tuple[str, ...]  # the other operators of the program in these nodes
    flops: int | None  # floating point operations of `program`; None if they are not counted
    file_flops: int | None  # those of `written`
    ns: float | None  # the time of `program`; None if times are not measured
    optimized_ns: float | None  # that of `optimized`, of which the operators in `fused_with` have the same nodes


def _nodes(row: Any) -> str:
    few = row.op_types[-4:]
    return " ".join([*(["…"] if len(few) < len(row.op_types) else []), *few])


def listed(names: tuple[str, ...]) -> str:
    """Few of them: "aten::relu, aten::add and 3 more"."""
    more = f" and {len(names) - MOST_LISTED} more" if len(names) > MOST_LISTED else ""
    return ", ".join(names[:MOST_LISTED]) + more


_COLUMNS = [
    name_column("id"),
    Column("nodes", _nodes, left=True, folds=True, field="op_types"),
    Column("value", lambda row: row.value, left=True, folds=True, field="value"),
    general_column("error", "error"),
    general_column("max abs", "max_abs"),
    general_column("tolerated", "tolerance"),
    number_column("calls", "differs"),
    Column("result", lambda row: f"{row.dtype}{list(row.shape)}", left=True, field="shape"),
    Column("note", lambda row: row.note, left=True, folds=True, field="note"),
]
_UNMATCHED = [
    Column("value", lambda row: row.value, left=True, folds=True, field="value"),
    Column("operator", lambda row: row.op, left=True, field="op"),
    Column("module", lambda row: row.module_path, left=True, folds=True, field="module_path"),
    Column("why", lambda row: row.why, left=True, folds=True, field="why"),
]


def _short(names: tuple[str, ...]) -> str:
    return " ".join(name.rpartition("::")[2] for name in names)


def _mega(flops: int | None) -> str:
    """Empty where nothing multiplies."""
    return "?" if flops is None else f"{flops / 1e6:.4g}" if flops else ""


def _micro(ns: float | None) -> str:
    return "?" if ns is None else f"{ns / 1e3:,.1f}"


def _also(row: Form) -> str:
    """The operators of the program that have no value of their own in the file."""
    others = list(row.program)
    if row.name in others:
        others.remove(row.name)
    return _short(tuple(others))


_FORMS = [
    name_column("id"),
    Column("with", _also, left=True, folds=True, field="program"),
    Column(".pt2", lambda row: _short(row.exported), left=True, folds=True, field="exported"),
    Column("in the file", lambda row: " ".join(row.written), left=True, folds=True, field="written"),
    Column("optimized", lambda row: " ".join(row.optimized) or "-", left=True, folds=True, field="optimized"),
    Column("together with", lambda row: listed(row.fused_with), left=True, folds=True, field="fused_with"),
    Column("MFLOP", lambda row: _mega(row.flops), field="flops"),
    Column("of the file", lambda row: _mega(row.file_flops), field="file_flops"),
    Column("µs", lambda row: _micro(row.ns), field="ns"),
    Column("optimized µs", lambda row: _micro(row.optimized_ns), field="optimized_ns"),
]
GROUPINGS = {
    "cause": Grouping(_COLUMNS, fields_of(Row)),
    "value": Grouping(_COLUMNS, fields_of(Row)),
    "unmatched": Grouping(_UNMATCHED, fields_of(Unmatched)),
    "form": Grouping(_FORMS, fields_of(Form)),
}
