"""The tables that a CuptiProfiler prints."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from amanda.reports.rich_table import Column, rich_table
from amanda.tools.cupti.kernel_rows import KernelRow
from amanda.tools.cupti.operator_rows import OperatorRow, time_field
from amanda.tools.cupti.roofline import RooflineRow

if TYPE_CHECKING:
    import rich.table

Row = OperatorRow | KernelRow


def profile_table(rows: Sequence[Row], by: str, sort: str | None, top: int | None, caption: str) -> rich.table.Table:
    """See CuptiProfiler.table."""
    rows = _sorted(rows, sort, KernelRow if by == "kernel" else OperatorRow)
    columns = _KERNEL_COLUMNS if by == "kernel" else _columns_of(rows, by)
    return rich_table("cupti_profiler", columns, rows, top=top, caption=caption)


def roofline_table(rows: Sequence[RooflineRow], top: int | None, caption: str) -> rich.table.Table:
    """See CuptiProfiler.roofline_table."""
    whose = {row.on_device: "device ms" if row.on_device else "host ms" for row in rows}
    where = whose.popitem()[1] if len(whose) == 1 else "device or host ms"
    columns = [column if column.heading else column._replace(heading=where) for column in _ROOFLINE_COLUMNS]
    return rich_table("cupti_profiler", columns, rows, top=top, caption=caption)


def _text(heading: str, cell: Callable[[Any], str]) -> Column:
    return Column(heading, cell, left=True, folds=True)


_KERNEL_COLUMNS = (
    _text("kernel", lambda row: row.name),
    _text("family", lambda row: row.family),
    Column("count", lambda row: f"{row.count}"),
    Column("total ms", lambda row: f"{row.total_ns / 1e6:.2f}"),
    Column("mean µs", lambda row: f"{row.total_ns / row.count / 1e3:.1f}"),
    _text("mostly by", lambda row: max(row.operators, key=row.operators.__getitem__)),
)

_ROOFLINE_COLUMNS = (
    _text("op", lambda row: row.name),
    _text("module", lambda row: row.module_path or "(no module)"),
    Column("calls", lambda row: f"{row.calls}"),
    Column("", lambda row: f"{row.time_ns / 1e6:.2f}"),  # the rows show whether it is host or device time
    Column("GFLOP/s", lambda row: _or_unknown(row.flops_per_second, 1e9)),
    Column("GB/s", lambda row: _or_unknown(row.bytes_per_second, 1e9)),
    Column("FLOP/byte", lambda row: _or_unknown(row.intensity, 1)),
)


def _or_unknown(value: float | None, unit: float) -> str:
    return "?" if value is None else f"{value / unit:.2f}"


def _columns_of(rows: Sequence[Any], by: str) -> list[Column]:
    if by == "operator":  # one column: three do not fit into a terminal
        columns = [_text("operator, module, line", _place)]
    else:
        columns = [Column(by, lambda row: row.name or "(no module)", left=True, folds=by != "phase")]
    if by in ("op", "operator"):
        columns.append(Column("phase", lambda row: row.phase, left=True))
    columns.append(Column("calls", lambda row: f"{row.calls}"))
    if time_field(rows) == "device_ns":
        columns += [_milliseconds("device ms", "device_ns"), _milliseconds("device self ms", "device_self_ns")]
        columns.append(Column("kernels", lambda row: f"{row.kernels}"))
    columns += [_milliseconds("host ms", "host_ns"), _milliseconds("host self ms", "host_self_ns")]
    columns.append(Column("allocated MB", lambda row: f"{row.allocated_bytes / 1e6:.2f}"))
    return columns


def _place(row: OperatorRow) -> str:
    where = ", ".join(text for text in (row.module_path, os.path.basename(row.source)) if text)
    return f"{row.name}\n  {where}" if where else row.name


def _milliseconds(heading: str, field: str) -> Column:
    return Column(heading, lambda row: f"{getattr(row, field) / 1e6:.2f}")


def _sorted(rows: Sequence[Any], field: str | None, kind: type[Any]) -> Sequence[Any]:
    if field is None:
        return rows
    fields = [known.name for known in dataclasses.fields(kind) if known.name != "operators"]
    if field not in fields:
        raise ValueError(f"[cupti_profiler] there is no field {field!r} to sort by; there are {', '.join(fields)}")
    texts = bool(rows) and isinstance(getattr(rows[0], field), str)
    return sorted(rows, key=lambda row: getattr(row, field), reverse=not texts)
