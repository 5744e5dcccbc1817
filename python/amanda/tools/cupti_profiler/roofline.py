"""Rates of operators: a CuptiProfiler's times combined with the operations that Flops has counted."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import TYPE_CHECKING

from .operator_rows import OperatorRow

if TYPE_CHECKING:
    from amanda.tools.flops import Flops


@dataclasses.dataclass(frozen=True)
class RooflineRow:
    """The rates of an operator type in one module. A rate is None if it is not known."""

    name: str
    module_path: str
    calls: int
    flops: int
    bytes: int | None  # None without `operand_bytes=True`
    time_ns: int
    on_device: bool  # true for device time, false for host time
    flops_per_second: float | None
    bytes_per_second: float | None
    intensity: float | None  # operations per byte


def roofline_rows(operators: Iterable[OperatorRow], flops: Flops, weighed: bool) -> list[RooflineRow]:
    """See CuptiProfiler.roofline; `operators` are by place; `weighed`: their operands' bytes were measured."""
    timed: dict[tuple[str, str], OperatorRow] = {}
    for row in operators:
        total = timed.setdefault((row.name, row.module_path), OperatorRow(row.name))
        for field in ("calls", "host_ns", "device_ns", "operand_bytes"):
            setattr(total, field, getattr(total, field) + getattr(row, field))
    rows = []
    for counted in flops.rows():
        total = timed.get((counted.op, counted.module_path), OperatorRow(counted.op))
        time_ns = total.device_ns or total.host_ns
        seconds = time_ns / 1e9 if total.calls == counted.runs and time_ns else None
        size = total.operand_bytes if weighed else None
        rows.append(
            RooflineRow(
                name=counted.op,
                module_path=counted.module_path,
                calls=counted.runs,
                flops=counted.flops,
                bytes=size,
                time_ns=time_ns,
                on_device=bool(total.device_ns),
                flops_per_second=counted.flops / seconds if seconds else None,
                bytes_per_second=size / seconds if seconds and size is not None else None,
                intensity=counted.flops / size if size else None,
            )
        )
    return sorted(rows, key=lambda row: -row.time_ns)
