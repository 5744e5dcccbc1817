"""The tables that a CuptiProfiler prints."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from amanda.tools._kernel_rows import KernelRow
from amanda.tools._operator_rows import OperatorRow, time_field

if TYPE_CHECKING:
    import rich.table

Row = OperatorRow | KernelRow


def profile_table(rows: Sequence[Row], by: str, sort: str | None, top: int | None, caption: str) -> rich.table.Table:
    """See CuptiProfiler.table."""
    try:
        import rich.box
        import rich.table
        import rich.text
    except ImportError as error:
        raise ImportError(
            "[cupti_profiler] tables need rich: pip install 'amanda[profile]'; rows() needs nothing"
        ) from error
    rows = _sorted(rows, sort, KernelRow if by == "kernel" else OperatorRow)
    columns = _KERNEL_COLUMNS if by == "kernel" else _columns_of(rows, by)
    table = rich.table.Table(box=rich.box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.caption = rich.text.Text(caption) if caption else None
    for heading in columns:
        number = heading not in _TEXTS
        table.add_column(heading, justify="right" if number else "left", no_wrap=number, overflow="fold")
    for row in rows[:top]:
        table.add_row(*(rich.text.Text(cell(row)) for cell in columns.values()))
    if top is not None and len(rows) > top:
        table.add_row(f"({len(rows) - top} more)", style="dim")
    return table


_TEXTS = ("op", "operator", "module", "phase", "source", "kernel", "family", "mostly by")

_KERNEL_COLUMNS: dict[str, Callable[[Any], str]] = {
    "kernel": lambda row: row.name,
    "family": lambda row: row.family,
    "count": lambda row: f"{row.count}",
    "total ms": lambda row: f"{row.total_ns / 1e6:.2f}",
    "mean µs": lambda row: f"{row.total_ns / row.count / 1e3:.1f}",
    "mostly by": lambda row: max(row.operators, key=row.operators.__getitem__),
}


def _columns_of(rows: Sequence[Any], by: str) -> dict[str, Callable[[Any], str]]:
    columns: dict[str, Callable[[Any], str]] = {by: lambda row: row.name or "(no module)"}
    if by == "operator":
        columns["module"] = lambda row: row.module_path
        columns["source"] = lambda row: os.path.basename(row.source)
    if by in ("op", "operator"):
        columns["phase"] = lambda row: row.phase
    columns["calls"] = lambda row: f"{row.calls}"
    for where in ("device", "host") if time_field(rows) == "device_ns" else ("host",):
        columns[f"{where} ms"] = _milliseconds(f"{where}_ns")
        columns[f"{where} self ms"] = _milliseconds(f"{where}_self_ns")
        if where == "device":
            columns["kernels"] = lambda row: f"{row.kernels}"
    columns["allocated MB"] = lambda row: f"{row.allocated_bytes / 1e6:.2f}"
    return columns


def _milliseconds(field: str) -> Callable[[Any], str]:
    return lambda row: f"{getattr(row, field) / 1e6:.2f}"


def _sorted(rows: Sequence[Any], field: str | None, kind: type[Any]) -> Sequence[Any]:
    if field is None:
        return rows
    fields = [known.name for known in dataclasses.fields(kind) if known.name != "operators"]
    if field not in fields:
        raise ValueError(f"[cupti_profiler] there is no field {field!r} to sort by; there are {', '.join(fields)}")
    texts = bool(rows) and isinstance(getattr(rows[0], field), str)
    return sorted(rows, key=lambda row: getattr(row, field), reverse=not texts)
