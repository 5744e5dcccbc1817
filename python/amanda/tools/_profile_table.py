"""The tables that a CuptiProfiler prints."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from amanda.tools._kernel_rows import KernelRow
from amanda.tools._operator_rows import OperatorRow, time_field
from amanda.tools._roofline import RooflineRow

if TYPE_CHECKING:
    import rich.table

Row = OperatorRow | KernelRow


def profile_table(rows: Sequence[Row], by: str, sort: str | None, top: int | None, caption: str) -> rich.table.Table:
    """See CuptiProfiler.table."""
    rows = _sorted(rows, sort, KernelRow if by == "kernel" else OperatorRow)
    return _table(rows, _KERNEL_COLUMNS if by == "kernel" else _columns_of(rows, by), top, caption)


def roofline_table(rows: Sequence[RooflineRow], top: int | None, caption: str) -> rich.table.Table:
    """See CuptiProfiler.roofline_table."""
    whose = {row.on_device: "device ms" if row.on_device else "host ms" for row in rows}
    where = whose.popitem()[1] if len(whose) == 1 else "device or host ms"
    return _table(rows, {name or where: cell for name, cell in _ROOFLINE_COLUMNS.items()}, top, caption)


def _table(
    rows: Sequence[Any], columns: dict[str, Callable[[Any], str]], top: int | None, caption: str
) -> rich.table.Table:
    try:
        import rich.box
        import rich.table
        import rich.text
    except ImportError as error:
        raise ImportError(
            "[cupti_profiler] tables need rich: pip install 'amanda[profile]'; rows() needs nothing"
        ) from error
    table = rich.table.Table(box=rich.box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.caption = rich.text.Text(caption) if caption else None
    for heading in columns:
        left, folds = heading in (*_TEXTS, "phase"), heading in _TEXTS
        table.add_column(heading, justify="left" if left else "right", no_wrap=not folds, overflow="fold")
    for row in rows[:top]:
        table.add_row(*(rich.text.Text(cell(row)) for cell in columns.values()))
    if top is not None and len(rows) > top:
        table.add_row(f"({len(rows) - top} more)", style="dim")
    return table


_PLACE = "operator, module, line"
_TEXTS = ("op", _PLACE, "module", "kernel", "family", "mostly by")

_KERNEL_COLUMNS: dict[str, Callable[[Any], str]] = {
    "kernel": lambda row: row.name,
    "family": lambda row: row.family,
    "count": lambda row: f"{row.count}",
    "total ms": lambda row: f"{row.total_ns / 1e6:.2f}",
    "mean µs": lambda row: f"{row.total_ns / row.count / 1e3:.1f}",
    "mostly by": lambda row: max(row.operators, key=row.operators.__getitem__),
}

_ROOFLINE_COLUMNS: dict[str, Callable[[Any], str]] = {
    "op": lambda row: row.name,
    "module": lambda row: row.module_path or "(no module)",
    "calls": lambda row: f"{row.calls}",
    "": lambda row: f"{row.time_ns / 1e6:.2f}",  # whose time, the rows tell
    "GFLOP/s": lambda row: _or_unknown(row.flops_per_second, 1e9),
    "GB/s": lambda row: _or_unknown(row.bytes_per_second, 1e9),
    "FLOP/byte": lambda row: _or_unknown(row.intensity, 1),
}


def _or_unknown(value: float | None, unit: float) -> str:
    return "?" if value is None else f"{value / unit:.2f}"


def _columns_of(rows: Sequence[Any], by: str) -> dict[str, Callable[[Any], str]]:
    columns: dict[str, Callable[[Any], str]] = {by: lambda row: row.name or "(no module)"}
    if by == "operator":  # in one column: three leave no room for one another in a terminal
        columns = {_PLACE: _place}
    if by in ("op", "operator"):
        columns["phase"] = lambda row: row.phase
    columns["calls"] = lambda row: f"{row.calls}"
    if time_field(rows) == "device_ns":
        columns["device ms"] = _milliseconds("device_ns")
        columns["device self ms"] = _milliseconds("device_self_ns")
        columns["kernels"] = lambda row: f"{row.kernels}"
    columns["host ms"] = _milliseconds("host_ns")
    columns["host self ms"] = _milliseconds("host_self_ns")
    columns["allocated MB"] = lambda row: f"{row.allocated_bytes / 1e6:.2f}"
    return columns


def _place(row: OperatorRow) -> str:
    where = ", ".join(text for text in (row.module_path, os.path.basename(row.source)) if text)
    return f"{row.name}\n  {where}" if where else row.name


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
