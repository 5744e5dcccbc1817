"""Sections: what a page is made of, as plain data, which is the same in memory, in a page and in a run's folder.

docs/reports.md has their JSON. Lists of one section that stand side by side have one length.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from amanda.reports.rich_table import Column

SCHEMA = 1
"""The version of the format; it changes if a field changes its meaning."""
MOST_ROWS = 1_000_000
"""The most rows of a table: a browser sorts and filters this number in seconds."""
MOST_NODES = 2_000
MOST_BARS = 5_000


@dataclasses.dataclass(frozen=True)
class Section:
    heading: str
    caption: str = ""  # what is left out, and why; "" if there is nothing to say

    def as_json(self) -> dict[str, Any]:
        """Its fields and its kind, for JSON."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {"kind": type(self).__name__.lower(), **fields}

    def under(self, title: str) -> Section:
        """The same section, its heading behind a title."""
        return dataclasses.replace(self, heading=f"{title}: {self.heading}")


@dataclasses.dataclass(frozen=True)
class Text(Section):
    """The caption is the text. Line breaks are kept."""


@dataclasses.dataclass(frozen=True)
class Table(Section):
    """Rows to sort and to filter, column by column."""

    headings: Sequence[str] = ()
    numbers: Sequence[bool] = ()  # per column: true for numbers. They are aligned right, and sorted from the largest
    texts: Sequence[Sequence[str]] = ()  # per column and row: what is shown
    keys: Sequence[Sequence[float | str | None] | None] = ()  # the values to sort by; None to sort by texts
    total: int = 0  # rows of the tool; the table has the first of them


@dataclasses.dataclass(frozen=True)
class Listing(Section):
    """Source code with what its lines cost."""

    headings: Sequence[str] = ()
    cells: Sequence[Sequence[str]] = ()  # per line and column
    code: Sequence[str] = ()  # per line
    heat: Sequence[float] = ()  # per line: how strongly it is shaded, 0 to 1
    path: str = ""  # of the file, to which tables link; "" if they do not. Then the first cell of a line is its number


@dataclasses.dataclass(frozen=True)
class Icicle(Section):
    """A tree: each node is as wide as its value, with its children below. The first node is the root."""

    unit: str = ""
    labels: Sequence[str] = ()
    parents: Sequence[int | None] = ()  # positions; None for the root
    values: Sequence[float] = ()  # of a node with all its children


@dataclasses.dataclass(frozen=True)
class Timeline(Section):
    """Bars on tracks, such as threads, over time."""

    tracks: Sequence[str] = ()  # names
    track: Sequence[int] = ()  # per bar: position of its track
    start_ms: Sequence[float] = ()
    duration_ms: Sequence[float] = ()
    names: Sequence[str] = ()
    details: Sequence[str] = ()
    categories: Sequence[str] = ()  # each has a color


@dataclasses.dataclass(frozen=True)
class Curve(Section):
    """A value over time; it holds from each point until the next."""

    seconds: Sequence[float] = ()
    values: Sequence[float] = ()
    unit: str = ""


KINDS: Mapping[str, type[Section]] = {
    kind.__name__.lower(): kind for kind in (Text, Icicle, Timeline, Curve, Listing, Table)
}
"""The kinds of sections, in the order in which a page about a run has them."""


def section_of(data: Mapping[str, Any]) -> Section:
    """The section that `as_json` has written.

    Raises:
        ValueError: it is none.
    """
    fields = dict(data)
    kind = KINDS.get(fields.pop("kind", ""))
    try:
        if kind is None:
            raise TypeError(f"known kinds are {', '.join(KINDS)}")
        return kind(**fields)
    except TypeError as error:
        raise ValueError(f"[report] a section of kind {data.get('kind')!r} cannot be read: {error}") from None


def table_of(
    heading: str, columns: Sequence[Column], rows: Sequence[Any], caption: str = "", most: int | None = None
) -> Table:
    """A cell for each of `columns` in each of `rows`; the first `most` of them (None: all)."""
    shown = rows[:most]
    if len(shown) < len(rows):
        note = f"the first {len(shown):,} of {len(rows):,} rows; to_json, to_csv and amanda run --out write all"
        caption = "\n".join(filter(None, [note, caption]))
    same: dict[str, str] = {}  # equal texts are one: tables of operators repeat theirs
    texts = [[same.setdefault(text, text) for row in shown for text in [column.cell(row)]] for column in columns]
    keys = [[_key(column.field, row) for row in shown] if column.field else [None] for column in columns]
    held = [
        None if column == of or not any(key is not None for key in column) else column
        for column, of in zip(keys, texts, strict=True)
    ]
    numbers = [not column.left for column in columns]
    return Table(heading, caption, [column.heading for column in columns], numbers, texts, held, len(rows))


def icicle_of(
    heading: str, unit: str, root: str, costs: Iterable[tuple[Sequence[str], float]], caption: str = ""
) -> Icicle:
    """The tree of these paths. A path's value is added to all nodes along it; the largest `MOST_NODES` are kept, in the
    order of `costs`."""
    totals: dict[tuple[str, ...], float] = {(): 0.0}
    for path, value in costs:
        for length in range(len(path) + 1):
            node = tuple(path[:length])
            totals[node] = totals.get(node, 0.0) + value
    # A node comes after its parent: that has at least its value, and is shorter.
    largest = sorted(totals, key=lambda node: (-totals[node], len(node)))[:MOST_NODES]
    in_tree = {(), *largest} if largest[0] == () else {()}
    kept = [node for node in totals if node in in_tree]
    number = {node: position for position, node in enumerate(kept)}
    if more := len(totals) - len(kept):
        caption = "\n".join(filter(None, [caption, f"{more:,} smaller nodes are not drawn"]))
    labels = [node[-1] if node else root for node in kept]
    parents = [number[node[:-1]] if node else None for node in kept]
    return Icicle(heading, caption, unit, labels, parents, [totals[node] for node in kept])


def _key(field: str, row: Any) -> float | str | None:
    value = getattr(row, field, None)
    if isinstance(value, str):
        return value
    return value if isinstance(value, int | float) and math.isfinite(value) else None
