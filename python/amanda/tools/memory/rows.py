"""Rows of memory, and the columns of their tables."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

from amanda.toolkit.answers import pattern_of
from amanda.toolkit.tables import Column, Grouping, fields_of, name_column, number_column, percentage_column

GroupBy = Literal["kind", "id", "op", "module", "line"]
Kind = Literal["parameter", "buffer", "gradient", "optimizer state", "saved activation", "temporary", "other"]
MOST_KEEPERS = 2  # named in a row
GRAPHS = "a graph that the program keeps"  # the keeper of what is saved in one


@dataclasses.dataclass(frozen=True)
class Row:
    """Memory of one kind and one device that was made by one operator at its place, or by all of one type, module or
    line.

    *Kinds*: "parameter", "buffer", "gradient" and "optimizer state" are tensors of modules and optimizers. A "saved
    activation" was made in the forward pass and freed in a backward pass. "temporary" was made in a backward pass, or
    freed by an operator. "other" is what the program holds itself, or what still exists. A "saved activation"
    is also in a graph of autograd that still exists when the scope is left.
    """

    name: str  # "aten::linear", a module path, a line; by "kind" the kind; "" outside operators and modules
    kind: Kind
    device: str  # "cpu", "cuda:0"
    bytes: int
    blocks: int  # that the allocator has handed out
    share: float  # of the bytes of this device, 0 to 1
    kept_by: str  # "encoder.0.weight", "AddmmBackward0 (train.py:12)"; "" if not known
    op_id: int | None = None  # by "id"; else None
    module_path: str = ""  # by "id" and "module"
    source: str = ""  # file:line, by "id" and "line"


@dataclasses.dataclass(frozen=True)
class Held:
    """One block of memory. The first four fields of a row are of the operator that made it."""

    name: str
    op_id: int | None
    module_path: str
    source: str
    kind: Kind
    device: str
    bytes: int
    kept_by: str
    is_kept: bool = False  # by the program, or by a graph that it keeps: no operator has freed it


def rows_of(held: Sequence[Held], by: GroupBy) -> list[Row]:
    """The largest first."""
    totals: dict[str, int] = {}
    groups: dict[tuple[object, ...], list[Held]] = {}
    for block in held:
        totals[block.device] = totals.get(block.device, 0) + block.bytes
        groups.setdefault((*_KEYS[by](block), block.kind, block.device), []).append(block)
    rows = [_row(by, group, totals[group[0].device]) for group in groups.values()]
    return sorted(rows, key=lambda row: -row.bytes)


def _row(by: GroupBy, group: Sequence[Held], total: int) -> Row:
    first, size = group[0], sum(block.bytes for block in group)
    name = {"kind": first.kind, "module": first.module_path, "line": first.source}.get(by, first.name)
    return Row(
        name,
        first.kind,
        first.device,
        size,
        len(group),
        size / total if total else 0.0,
        keepers(block.kept_by for block in group),
        op_id=first.op_id if by == "id" else None,
        module_path=first.module_path if by in ("id", "module") else "",
        source=first.source if by in ("id", "line") else "",
    )


def keepers(of_blocks: Iterable[str]) -> str:
    """The keepers of some blocks, in few words: "step, exp_avg, exp_avg_sq of AdamW: 57 parameters"."""
    known = list(dict.fromkeys(filter(None, of_blocks)))
    states: dict[str, dict[str, None]] = {}  # by optimizer
    parameters: dict[str, None] = {}
    nodes: list[str] = []
    others = []
    for one in known:
        what, colon, parameter = one.partition(": ")
        state, of, optimizer = what.partition(" of ")
        if colon and of:
            states.setdefault(optimizer, {})[state] = None
            parameters[parameter] = None
        elif optimizer == GRAPHS:
            nodes.append(state)
        else:
            others.append(one)
    whose = next(iter(parameters)) if len(parameters) == 1 else f"{len(parameters)} parameters"
    by_optimizer = [f"{', '.join(names)} of {optimizer}: {whose}" for optimizer, names in states.items()]
    of_graphs = [f"{', '.join(_listed(nodes))} of {GRAPHS}"] if nodes else []
    return ", ".join([*by_optimizer, *of_graphs, *_listed(others)])


def _listed(names: Sequence[str]) -> list[str]:
    """A few names; parameters of layers that differ in their numbers as one."""
    if len(names) <= MOST_KEEPERS:
        return list(names)
    patterns = list(dict.fromkeys(map(pattern_of, names)))
    if len(patterns) <= MOST_KEEPERS:
        return [f"{', '.join(patterns)} ({len(names)})"]
    return [f"{', '.join(patterns[:MOST_KEEPERS])} and {len(patterns) - MOST_KEEPERS} more"]


_KEYS: dict[str, Callable[[Held], tuple[object, ...]]] = {
    "kind": lambda block: (),
    "id": lambda block: (block.op_id, block.name),
    "op": lambda block: (block.name,),
    "module": lambda block: (block.module_path,),
    "line": lambda block: (block.source,),
}


def sum_of(rows: Sequence[Row]) -> Row:
    """The total of a table; of one device, since shares of several are not added."""
    devices = {row.device for row in rows}
    share = sum(row.share for row in rows) if len(devices) == 1 else 1.0
    return Row("", "other", "", sum(row.bytes for row in rows), sum(row.blocks for row in rows), share, "")


_KIND = Column("kind", lambda row: row.kind, left=True, field="kind")
_VALUES = (
    number_column("MB", "bytes", 1e6, 3)._replace(decides=True),
    percentage_column("share", "share"),
    number_column("blocks", "blocks"),
    Column("device", lambda row: row.device, left=True, field="device"),
    Column("kept by", lambda row: row.kept_by, left=True, folds=True, field="kept_by", decides=True),
)
GROUPINGS: Mapping[str, Grouping] = {
    "kind": Grouping(
        [name_column("kind"), *_VALUES], fields_of(Row, without=["op_id", "module_path", "source"]), sum_of
    ),
    **{
        by: Grouping([name_column(by), _KIND, *_VALUES], fields_of(Row, without=without), sum_of)
        for by, without in {
            "id": [],
            "op": ["op_id", "module_path", "source"],
            "module": ["op_id", "module_path", "source"],
            "line": ["op_id", "module_path", "source"],
        }.items()
    },
}
