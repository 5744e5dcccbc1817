"""Totals of a CuptiProfiler's operators: by type, by place, by module, by phase."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal

from amanda.toolkit.native import cupti

OperatorBy = Literal["op", "id", "operator", "module", "phase"]
GroupBy = Literal["op", "id", "operator", "module", "line", "phase", "kernel"]
OUTSIDE = "(outside operators)"
"""The row for device work that belongs to no observed operator."""


@dataclasses.dataclass
class OperatorRow:
    """Totals of one group of operators. Fields with "self" exclude inner operators; the others include them.

    Times are in nanoseconds. On the host: wall time from just before the operator is called until it returns, summed
    over threads. On the device: time of kernels, copies and memsets, summed over streams. Bytes are those of the host
    allocator.
    """

    name: str  # "aten::conv2d", "ConvolutionBackward0"; by "module" the module's path
    phase: str = ""  # "forward", "backward", "recompute" or "optimizer"; by "module": ""
    module_path: str = ""  # by "id" and "module"
    source: str = ""  # by "id": file:line
    forward_name: str = ""  # of a backward operator, by "op" and "id": "aten::conv2d"
    calls: int = 0
    failed: int = 0  # runs that raised an exception; not measured
    host_ns: int = 0
    host_self_ns: int = 0
    device_ns: int = 0
    device_self_ns: int = 0
    kernels: int = 0  # also copies and memsets; includes inner operators
    allocated_bytes: int = 0
    freed_bytes: int = 0
    allocated_self_bytes: int = 0
    freed_self_bytes: int = 0
    device_allocated_bytes: int = 0
    device_freed_bytes: int = 0
    operand_bytes: int = 0  # read and written by the operator itself; 0 without `operand_bytes=True`


def operator_rows(profile: cupti.KernelProfile, by: OperatorBy) -> list[OperatorRow]:
    """See CuptiProfiler.rows."""
    # The order matters: operators may run meanwhile, and what is read later covers all that was read before.
    kernels, nodes, operators = profile.kernels(), profile.nodes(), profile.operators()
    rows: dict[Any, OperatorRow] = {}

    def row(key: Any, node: cupti.Node) -> OperatorRow:
        if key not in rows:
            rows[key] = _KEYS[by].describe(key, operators[node.op], node.phase)
        return rows[key]

    def rows_around(node: cupti.Node) -> list[OperatorRow]:
        """The groups of the node and its enclosing nodes, each once: recursion must not count twice."""
        holders: dict[Any, cupti.Node] = {}
        while node.index:
            holders |= dict.fromkeys(_KEYS[by].around(operators[node.op], node), node)
            node = nodes[node.parent]
        return [row(key, holder) for key, holder in holders.items()]

    outside = OperatorRow(OUTSIDE)
    own: dict[int, OperatorRow] = {0: outside}
    around: dict[int, list[OperatorRow]] = {0: [outside]}
    launched = {kernel.node for kernel in kernels}
    for node in nodes[1:]:
        if node.calls or node.failed or node.index in launched:
            own[node.index] = row(_KEYS[by].own(operators[node.op], node), node)
            around[node.index] = rows_around(node)
            _add_host(own[node.index], around[node.index], node)
    for kernel in kernels:  # the node may not be ours: another CUPTI client may use the same kind of id
        own.get(kernel.node, outside).device_self_ns += kernel.total_ns
        for outer in around.get(kernel.node, [outside]):
            outer.device_ns += kernel.total_ns
            outer.kernels += kernel.count
    found = [*rows.values(), *([outside] if outside.kernels else [])]
    field = time_field(found)
    return sorted(found, key=lambda row: -getattr(row, field))


def time_field(rows: Iterable[OperatorRow]) -> Literal["device_ns", "host_ns"]:
    """The time that counts: device time if the device did anything."""
    return "device_ns" if any(row.device_ns for row in rows) else "host_ns"


@dataclasses.dataclass(frozen=True)
class _Grouping:
    own: Callable[[cupti.ProfiledOperator, cupti.Node], Any]  # the group that a node itself counts for
    around: Callable[
        [cupti.ProfiledOperator, cupti.Node], Iterable[Any]
    ]  # and the groups that contain it, including itself
    describe: Callable[[Any, cupti.ProfiledOperator, str], OperatorRow]


def _grouping(
    own: Callable[[cupti.ProfiledOperator, cupti.Node], Any],
    describe: Callable[[Any, cupti.ProfiledOperator, str], OperatorRow],
) -> _Grouping:
    return _Grouping(own, lambda op, node: (own(op, node),), describe)


def _prefixes(path: str) -> Iterator[str]:
    yield ""
    parts = path.split(".") if path else []
    for end in range(1, len(parts) + 1):
        yield ".".join(parts[:end])


def _describe_place(key: Any, op: cupti.ProfiledOperator, phase: str) -> OperatorRow:
    forward = op.forward_name if op.backward_op_id else ""
    return OperatorRow(op.name, phase, op.module_path, op.source, forward)


_KEYS: dict[str, _Grouping] = {
    "op": _grouping(
        lambda op, node: (op.name, node.phase),
        lambda key, op, phase: OperatorRow(op.name, phase, forward_name=op.forward_name if op.backward_op_id else ""),
    ),
    "id": _grouping(lambda op, node: (node.op, node.phase), _describe_place),
    "module": _Grouping(
        lambda op, node: op.module_path,
        lambda op, node: _prefixes(op.module_path),
        lambda key, op, phase: OperatorRow(key, module_path=key),
    ),
    "phase": _grouping(lambda op, node: node.phase, lambda key, op, phase: OperatorRow(key, key)),
}


_KEYS["operator"] = _KEYS["id"]  # its older name


def _add_host(own: OperatorRow, around: Iterable[OperatorRow], node: cupti.Node) -> None:
    measured = node.sum
    own.calls += node.calls
    own.failed += node.failed
    own.host_self_ns += measured.exclusive_ns
    own.allocated_self_bytes += measured.allocated_bytes
    own.freed_self_bytes += measured.freed_bytes
    own.operand_bytes += measured.operand_bytes
    for row in around:
        row.host_ns += measured.exclusive_ns
        row.allocated_bytes += measured.allocated_bytes
        row.freed_bytes += measured.freed_bytes
        row.device_allocated_bytes += measured.device_allocated_bytes
        row.device_freed_bytes += measured.device_freed_bytes
