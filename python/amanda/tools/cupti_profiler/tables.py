"""The tables that a CuptiProfiler prints."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from amanda.toolkit.tables import Column, Grouping, fields_of, name_column, number_column, percentage_column, rich_table

from .kernel_rows import KernelRow
from .line_rows import LineRow, on_device
from .operator_rows import OperatorRow, time_field
from .roofline import RooflineRow

if TYPE_CHECKING:
    from amanda.toolkit.tables import Table


def operator_columns(by: str, rows: Sequence[OperatorRow]) -> list[Column]:
    """The columns of a table by anything but "kernel" and "line"; those of the device only if it did something."""
    columns = [name_column("id" if by == "operator" else by)]
    if by in ("op", "id", "operator"):
        columns.append(Column("phase", lambda row: row.phase, left=True, field="phase"))
    columns.append(number_column("calls", "calls"))
    if time_field(rows) == "device_ns":
        columns += [_milliseconds("device ms", "device_ns"), _milliseconds("device self ms", "device_self_ns")]
        columns.append(number_column("kernels", "kernels"))
    columns += [_milliseconds("host ms", "host_ns"), _milliseconds("host self ms", "host_self_ns")]
    columns.append(number_column("allocated MB", "allocated_bytes", 1e6, 2))
    return columns


def line_columns(rows: Sequence[LineRow], *, listing: bool = False) -> list[Column]:
    """The columns of a table by "line"; those of the device only if it did something.

    Arguments:
        listing: the columns are next to source code: they have no name, and only the time that counts.
    """
    columns = [number_column("calls", "calls")] if listing else [name_column("line"), number_column("calls", "calls")]
    share = percentage_column("share", "share")
    if on_device(rows):
        where = "" if listing else "device "
        columns.append(_milliseconds(f"{where}forward ms", "device_forward_ns"))
        columns.append(_milliseconds(f"{where}backward ms", "device_backward_ns"))
        columns += [share, number_column("kernels", "kernels")]
        if listing:
            return [*columns, number_column("device MB", "device_allocated_bytes", 1e6, 2)]
        columns += [_milliseconds("host ms", "host_ns"), number_column("device MB", "device_allocated_bytes", 1e6, 2)]
    else:
        columns += [_milliseconds("forward ms", "host_forward_ns"), _milliseconds("backward ms", "host_backward_ns")]
        columns.append(share)
    return [*columns, number_column("allocated MB", "allocated_bytes", 1e6, 2)]


def line_costs(rows: Sequence[LineRow], *, device: bool) -> str:
    """Their time as text: "12.30 ms on the host (8.10 of them backward)"."""
    total = sum(row.device_ns if device else row.host_ns for row in rows) / 1e6
    backward = sum(row.device_backward_ns if device else row.host_backward_ns for row in rows) / 1e6
    return f"{total:.2f} ms on the {'device' if device else 'host'} ({backward:.2f} of them backward)"


def roofline_table(rows: Sequence[RooflineRow], top: int | None, caption: str) -> Table:
    """See CuptiProfiler.roofline_table."""
    whose = {row.on_device: "device ms" if row.on_device else "host ms" for row in rows}
    where = whose.popitem()[1] if len(whose) == 1 else "device or host ms"
    columns = [column if column.heading else column._replace(heading=where) for column in _ROOFLINE_COLUMNS]
    return rich_table("cupti_profiler", columns, rows, top=top, caption=caption)


def _milliseconds(heading: str, field: str) -> Column:
    return number_column(heading, field, 1e6, 2)


def _text(heading: str, cell: Callable[[Any], str], field: str = "") -> Column:
    return Column(heading, cell, left=True, folds=True, field=field)


_KERNEL_COLUMNS = (
    _text("kernel", lambda row: row.name, "name"),
    _text("family", lambda row: row.family, "family"),
    number_column("count", "count"),
    _milliseconds("total ms", "total_ns"),
    Column("mean µs", lambda row: f"{row.total_ns / row.count / 1e3:.1f}"),
    _text("mostly by", lambda row: max(row.operators, key=row.operators.__getitem__)),
)

GROUPINGS: Mapping[str, Grouping] = {
    **{by: Grouping((), fields_of(OperatorRow)) for by in ("op", "id", "module")},
    "line": Grouping((), fields_of(LineRow, without=["source"], host_forward_ns="int64", device_forward_ns="int64")),
    "phase": Grouping((), fields_of(OperatorRow)),
    "kernel": Grouping(_KERNEL_COLUMNS, fields_of(KernelRow)),
    "operator": Grouping((), fields_of(OperatorRow)),  # the older name of "id"
}
"""The columns of operators are `operator_columns`, those of lines `line_columns`."""

_ROOFLINE_COLUMNS = (
    _text("op", lambda row: row.name),
    _text("module", lambda row: row.module_path or "(no module)"),
    number_column("calls", "calls"),
    _milliseconds("", "time_ns"),  # the rows show whether it is host or device time
    Column("GFLOP/s", lambda row: _or_unknown(row.flops_per_second, 1e9)),
    Column("GB/s", lambda row: _or_unknown(row.bytes_per_second, 1e9)),
    Column("FLOP/byte", lambda row: _or_unknown(row.intensity, 1)),
)


def _or_unknown(value: float | None, unit: float) -> str:
    return "?" if value is None else f"{value / unit:.2f}"
