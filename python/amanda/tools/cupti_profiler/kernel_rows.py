"""Totals of the kernels, copies and memsets of a CuptiProfiler."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterator

from amanda.toolkit.native import cupti

from .kernel_families import family_of
from .operator_rows import OUTSIDE


@dataclasses.dataclass
class KernelRow:
    """All runs of one kernel, or all copies or memsets of one kind. Times are nanoseconds on the device."""

    name: str  # demangled
    kind: str  # "kernel", "memcpy" or "memset"
    family: str  # "implicit GEMM", "flash attention", ...
    count: int = 0
    total_ns: int = 0
    shortest_ns: int = 0
    longest_ns: int = 0
    bytes: int = 0  # copied or set
    operators: dict[str, int] = dataclasses.field(default_factory=dict)  # nanoseconds by operator type


def kernel_rows(profile: cupti.KernelProfile) -> list[KernelRow]:
    """See CuptiProfiler.kernel_rows."""
    rows: dict[tuple[str, str], KernelRow] = {}
    for kernel, operator in _with_operators(profile):
        row = rows.setdefault(
            (kernel.name, kernel.kind), KernelRow(kernel.name, kernel.kind, _family(kernel), shortest_ns=2**62)
        )
        row.count += kernel.count
        row.total_ns += kernel.total_ns
        row.shortest_ns = min(row.shortest_ns, kernel.shortest_ns)
        row.longest_ns = max(row.longest_ns, kernel.longest_ns)
        row.bytes += kernel.bytes
        row.operators[operator] = row.operators.get(operator, 0) + kernel.total_ns
    return sorted(rows.values(), key=lambda row: -row.total_ns)


def families_by_operator(profile: cupti.KernelProfile) -> dict[str, dict[str, int]]:
    """See CuptiProfiler.kernel_families."""
    families: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for kernel, operator in _with_operators(profile):
        families[operator][_family(kernel)] += kernel.total_ns
    by_time = sorted(families.items(), key=lambda item: -item[1].total())
    return {operator: dict(times.most_common()) for operator, times in by_time}


def _with_operators(profile: cupti.KernelProfile) -> Iterator[tuple[cupti.KernelTotals, str]]:
    """Each kernel with the type of its operator. The order of reading matters: operators may run meanwhile."""
    kernels, nodes, operators = profile.kernels(), profile.nodes(), profile.operators()
    for kernel in kernels:
        yield kernel, operators[nodes[kernel.node].op].name if 0 < kernel.node < len(nodes) else OUTSIDE


def _family(kernel: cupti.KernelTotals) -> str:
    return family_of(kernel.name) if kernel.kind == "kernel" else kernel.kind
