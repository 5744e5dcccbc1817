"""Rows of memory, and the columns of their tables."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from amanda.toolkit.tables import Column, Grouping, fields_of, name_column, number_column, percentage_column

GroupBy = Literal["kind", "id", "op", "module", "line"]
Kind = Literal["parameter", "buffer", "gradient", "optimizer state", "saved activation", "temporary", "other"]
MOST_KEEPERS = 2  # named in a row


@dataclasses.dataclass(frozen=True)
class Row:
    """Memory of one kind and one device that was made by one operator at its place, or by all of one type, module or
    line.

    *Kinds*: "parameter", "buffer", "gradient" and "optimizer state" are tensors of modules and optimizers. A "saved
    activation" was made in the forward pass and freed in a backward pass. "temporary" was made in a backward pass, or
    freed by an operator. "other" is what the program holds itself, or what still exists.
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
    keepers = list(dict.fromkeys(block.kept_by for block in group if block.kept_by))
    more = f" and {len(keepers) - MOST_KEEPERS} more" if len(keepers) > MOST_KEEPERS else ""
    name = {"kind": first.kind, "module": first.module_path, "line": first.source}.get(by, first.name)
    return Row(
        name,
        first.kind,
        first.device,
        size,
        len(group),
        size / total if total else 0.0,
        ", ".join(keepers[:MOST_KEEPERS]) + more,
        op_id=first.op_id if by == "id" else None,
        module_path=first.module_path if by in ("id", "module") else "",
        source=first.source if by in ("id", "line") else "",
    )


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
    number_column("MB", "bytes", 1e6, 3),
    percentage_column("share", "share"),
    number_column("blocks", "blocks"),
    Column("device", lambda row: row.device, left=True, field="device"),
    Column("kept by", lambda row: row.kept_by, left=True, folds=True, field="kept_by"),
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
