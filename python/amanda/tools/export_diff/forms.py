"""Forms: what became of an operator of the program in the file, and in the graph that ONNX Runtime makes of the file."""

from __future__ import annotations

import collections
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from .file_flops import FileFlops
from .joined import Join, total
from .results import Cover
from .rows import Form, Row


class _Group(NamedTuple):
    """Nodes between values that both graphs have."""

    written: frozenset[int]  # positions
    optimized: tuple[int, ...]


class Times(NamedTuple):
    """In nanoseconds: medians."""

    runs: int
    program: list[float]  # by the position of an operator in the call
    nodes: list[float]  # by the position of an optimized node


def forms(
    rows: Sequence[Row],
    written: Any,
    optimized: Any,
    join: Join,
    file_flops: FileFlops | None,
    times: Times | None,
) -> list[Form]:
    """One form for each row.

    An optimizer keeps the names of values that it does not fuse away. Between two such values, the nodes of both graphs
    compute the same.
    """
    ours, theirs = Cover(written), Cover(optimized)
    values = {row.value for row in rows}
    positions = {row.value: frozenset(ours.between(row.value, values)) for row in rows}
    groups = list(_groups(written, optimized, ours, theirs))
    nodes_of = {
        row.value: sorted({i for group in groups if group.written & positions[row.value] for i in group.optimized})
        for row in rows
    }
    users: dict[int, list[Row]] = collections.defaultdict(list)  # of an optimized node
    for row in rows:
        for i in nodes_of[row.value]:
            users[i].append(row)
    found = []
    for row in rows:
        nodes = nodes_of[row.value]
        shared = {each.value: each for i in nodes for each in users[i] if each is not row}
        joined, own = join.of(row.value), sorted(positions[row.value])
        found.append(
            Form(
                row.op_id,
                row.name,
                row.module_path,
                row.source,
                row.value,
                joined.program,
                joined.exported,
                row.op_types,
                tuple(_type(theirs.node(i)) for i in nodes),
                tuple(each.name or each.value for each in shared.values()),
                joined.flops,
                None if file_flops is None else total(file_flops.of(i, ours.node(i)) for i in own),
                None if times is None else sum(times.program[i] for i in joined.positions),
                None if times is None else sum(times.nodes[i] for i in nodes),
            )
        )
    return found


def _groups(written: Any, optimized: Any, ours: Cover, theirs: Cover) -> Iterator[_Group]:
    made = [{name for node in graph.node for name in node.output if name} for graph in (written, optimized)]
    both = made[0] & made[1]
    ends = both | {each.name for each in written.input}
    for node in optimized.node:
        for name in node.output:
            if name in both:
                yield _Group(frozenset(ours.between(name, ends)), tuple(theirs.between(name, ends)))


def _type(node: Any) -> str:
    return f"{node.domain}::{node.op_type}" if node.domain else str(node.op_type)
