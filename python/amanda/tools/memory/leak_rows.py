"""Rows of memory that each step leaves behind, and the columns of their tables."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Literal

from amanda.toolkit.tables import Column, Grouping, fields_of, name_column, number_column, percentage_column

LeakBy = Literal["owner", "id", "line"]


@dataclasses.dataclass(frozen=True)
class LeakRow:
    """Memory that each step leaves behind: of one owner, or that one operator or line has made for one owner.

    *Kinds*: "saved activation", what a graph of autograd holds; "parameter", "gradient", "buffer" and "optimizer state", of
    modules and optimizers; "tensor", which the program holds itself; "unknown", where no object of Python was found.
    """

    name: str  # by "owner" its text; by "id" "aten::linear"; by "line" the line that made it
    kind: str
    device: str  # "cpu", "cuda:0"
    bytes_per_step: float
    blocks_per_step: float
    share: float  # of all that grows, 0 to 1
    bytes: int  # in memory when last looked at
    kept_by: str  # "the graph of losses[*] (global of train.py)"
    saved_by: str  # "GeluBackward0", the operators that a graph has saved it for; "" elsewhere
    module_path: str = ""  # by "id"
    source: str = ""  # file:line, by "id"
    user_line: str = ""  # the innermost line outside of libraries, as file:line; by "owner" that of most of it


def together(rows: Sequence[LeakRow], by: LeakBy) -> list[LeakRow]:
    """Rows by "id" as those of another grouping, the largest first."""
    groups: dict[Hashable, list[LeakRow]] = collections.defaultdict(list)
    for row in rows:
        groups[_KEYS[by](row)].append(row)
    return sorted((_together(group, by) for group in groups.values()), key=lambda row: -row.bytes_per_step)


def _together(group: Sequence[LeakRow], by: LeakBy) -> LeakRow:
    first = group[0]
    return dataclasses.replace(
        first,
        name={"owner": first.kept_by or NOBODY, "line": first.user_line}.get(by, first.name),
        bytes_per_step=sum(row.bytes_per_step for row in group),
        blocks_per_step=sum(row.blocks_per_step for row in group),
        share=sum(row.share for row in group),
        bytes=sum(row.bytes for row in group),
        saved_by=", ".join(dict.fromkeys(row.saved_by for row in group if row.saved_by)),
        module_path=first.module_path if by == "id" else "",
        source=first.source if by == "id" else "",
        user_line=_main_line(group),
    )


def _main_line(group: Sequence[LeakRow]) -> str:
    """The line that has made most of it."""
    sums: collections.Counter[str] = collections.Counter()
    for row in group:
        sums[row.user_line] += int(row.bytes_per_step)
    return max(sums, key=sums.__getitem__)


NOBODY = "(no object of Python)"
_KEYS: Mapping[LeakBy, Callable[[LeakRow], Hashable]] = {
    "owner": lambda row: (row.kept_by, row.kind, row.device),
    "id": lambda row: row,
    "line": lambda row: (row.user_line, row.kept_by, row.kind, row.device),
}
_KIND = Column("kind", lambda row: row.kind, left=True, field="kind")
_VALUES = (
    number_column("KB/step", "bytes_per_step", 1e3, 3)._replace(decides=True),
    number_column("blocks/step", "blocks_per_step", digits=2),
    percentage_column("share", "share"),
    number_column("MB now", "bytes", 1e6, 3),
)
_KEPT = Column("kept by", lambda row: row.kept_by or NOBODY, left=True, folds=True, field="kept_by", decides=True)
_SAVED = Column("saved by", lambda row: row.saved_by, left=True, folds=True, field="saved_by")


def _made_at(row: LeakRow) -> str:
    from amanda.toolkit.frames import line_of_code

    return line_of_code(row.user_line) or "(no line)"


_MADE = Column("made at", _made_at, left=True, shortens=True, field="user_line")
GROUPINGS: Mapping[str, Grouping] = {
    "owner": Grouping(
        [name_column("owner"), _KIND, *_VALUES, _MADE, _SAVED], fields_of(LeakRow, without=["module_path", "source"])
    ),
    "id": Grouping([name_column("id"), _KIND, *_VALUES, _KEPT, _SAVED], fields_of(LeakRow)),
    "line": Grouping(
        [name_column("line"), _KIND, *_VALUES, _KEPT, _SAVED], fields_of(LeakRow, without=["module_path", "source"])
    ),
}
