"""Totals of a CuptiProfiler's operators by line, with forward and backward next to each other."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from amanda.toolkit.native import cupti

from .operator_rows import OUTSIDE

BACKWARD = "backward"


@dataclasses.dataclass
class LineRow:
    """The cost of a line of the program. Backward operators count for the line that called their forward operator.

    Times, bytes and kernels are counted once: an operator that runs inside an operator of another line counts for its
    own line. Times are in nanoseconds, on the host and on the device, as in `OperatorRow`. The fields with `backward`
    are the part of backward operators; the rest is the forward pass, recomputation, and the optimizer.
    """

    name: str  # file:line
    source: str = ""  # the same; "" if there is no line
    calls: int = 0  # of outermost operators that are not backward
    backward_calls: int = 0
    failed: int = 0  # runs that raised an exception; not measured
    share: float = 0.0  # of all lines, 0 to 1: of device time if the device did anything, else of host time
    host_ns: int = 0
    host_backward_ns: int = 0
    device_ns: int = 0
    device_backward_ns: int = 0
    kernels: int = 0  # also copies and memsets
    backward_kernels: int = 0
    allocated_bytes: int = 0
    freed_bytes: int = 0
    device_allocated_bytes: int = 0
    device_freed_bytes: int = 0

    @property
    def host_forward_ns(self) -> int:
        """Host time that is not of backward operators."""
        return self.host_ns - self.host_backward_ns

    @property
    def device_forward_ns(self) -> int:
        """Device time that is not of backward operators."""
        return self.device_ns - self.device_backward_ns


def line_rows(profile: cupti.KernelProfile) -> list[LineRow]:
    """See CuptiProfiler.rows."""
    # The order matters: operators may run meanwhile, and what is read later covers all that was read before.
    kernels, nodes, operators = profile.kernels(), profile.nodes(), profile.operators()
    sources = _sources(operators)
    rows: dict[str, LineRow] = {}
    outside = LineRow(OUTSIDE)

    def row_of(node: cupti.Node) -> LineRow:
        if not node.index:
            return outside
        source = sources[operators[node.op].op_id]
        return rows.setdefault(source, LineRow(source, source))

    for node in nodes[1:]:
        if node.calls or node.failed:
            _add_host(row_of(node), node, nodes[node.parent])
    for kernel in kernels:  # the node may not be ours: another CUPTI client may use the same kind of id
        node = nodes[kernel.node] if kernel.node < len(nodes) else nodes[0]
        row, backward = row_of(node), node.phase == BACKWARD
        row.device_ns += kernel.total_ns
        row.device_backward_ns += kernel.total_ns * backward
        row.kernels += kernel.count
        row.backward_kernels += kernel.count * backward
    found = [*rows.values(), *([outside] if outside.kernels else [])]
    return _with_shares(found)


def on_device(rows: Sequence[LineRow]) -> bool:
    return any(row.device_ns for row in rows)


def _sources(operators: Sequence[cupti.ProfiledOperator]) -> dict[int, str]:
    """The lines by operator id. A recomputation by a checkpoint has the line of its first run."""
    sources: dict[int, str] = {}
    for operator in operators:
        sources.setdefault(operator.op_id, operator.source)
    return sources


def _add_host(row: LineRow, node: cupti.Node, parent: cupti.Node) -> None:
    measured, backward = node.sum, node.phase == BACKWARD
    if backward:
        row.backward_calls += node.calls
        row.host_backward_ns += measured.exclusive_ns
    elif not parent.index or parent.phase == BACKWARD:
        row.calls += node.calls
    row.failed += node.failed
    row.host_ns += measured.exclusive_ns
    row.allocated_bytes += measured.allocated_bytes
    row.freed_bytes += measured.freed_bytes
    row.device_allocated_bytes += measured.device_allocated_bytes
    row.device_freed_bytes += measured.device_freed_bytes


def _with_shares(rows: list[LineRow]) -> list[LineRow]:
    """Longest time first."""
    field = "device_ns" if on_device(rows) else "host_ns"
    total = sum(getattr(row, field) for row in rows)
    for row in rows:
        row.share = getattr(row, field) / total if total else 0.0
    return sorted(rows, key=lambda row: -getattr(row, field))
