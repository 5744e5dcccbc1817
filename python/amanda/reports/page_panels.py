"""Panels: the parts of a page that fold. Sections that are alternatives of each other share one, as tabs."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
from collections.abc import Sequence
from typing import Any

import markupsafe  # jinja2's own

from amanda.reports import plotly_charts
from amanda.reports.packed_table import packed
from amanda.reports.sections import Listing, Section, Table

_FEW = 3  # panels that are all open at first
_HOTTEST = 8  # lines of a file that stand above it


@dataclasses.dataclass(frozen=True)
class Part:
    """A section of a page, as its template takes it."""

    heading: str
    rank: int | None
    group: object  # parts that follow each other with the same one share a panel
    group_title: str  # of a panel of several
    tab: str  # its title in a panel of several
    shown: dict[str, Any]
    run: str = ""  # one of two that stand next to each other


@dataclasses.dataclass(frozen=True)
class Panel:
    id: str
    title: str
    rank: int | None
    sections: list[dict[str, Any]]
    is_open: bool
    is_pair: bool = False  # its sections are shown next to each other, without tabs


def part_of(section: Section, rank: int | None, run: str = "") -> Part:
    """The part that shows a section.

    Arguments:
        rank: of the process that the section is about; None if it is not about one.
        run: the one of two runs that it is about.
    """
    if run:
        part = part_of(section.under(run), rank)
        title = f"source code of {section.path}" if isinstance(section, Listing) and section.path else section.heading
        title = title if rank is None else f"rank {rank}: {title}"
        return dataclasses.replace(part, group=(type(section), title, rank), group_title=title, tab=run, run=run)
    if rank is not None:
        section = section.under(f"rank {rank}")
    heading = section.heading
    shown: dict[str, Any] = {"kind": "text", "heading": heading, "caption": section.caption}
    if isinstance(section, Table):
        stem, by, grouping = heading.partition(" by ")
        group = (Table, stem, rank) if by else object()
        return Part(heading, rank, group, stem, f"by {grouping}", shown | {"kind": "table", "data": packed(section)})
    if isinstance(section, Listing):
        title = "source code" if rank is None else f"rank {rank}: source code"
        file = os.path.basename(section.path) or heading
        return Part(heading, rank, (Listing, rank), title, file, shown | _listing(section))
    if chart := plotly_charts.chart_of(section):
        shown |= {"kind": "chart", "data": _data(chart)}
    return Part(heading, rank, object(), heading, heading, shown)


def panels_of(parts: Sequence[Part]) -> list[Panel]:
    """The panels of a page. If there are many, the first texts, chart, source code and table are open."""
    groups = [list(group) for _, group in itertools.groupby(parts, lambda part: part.group)]
    panels: list[Panel] = []
    opened: set[str] = set()
    for group in groups:
        id_ = f"p{len(panels)}"
        sections = [part.shown | {"id": f"{id_}s{number}", "tab": part.tab} for number, part in enumerate(group)]
        kind = group[0].shown["kind"]
        is_first = opened <= {"text"} if kind == "text" else kind not in opened  # texts: the answers, above all else
        is_open = len(groups) <= _FEW or is_first
        opened.add(kind)
        title = group[0].group_title if len(group) > 1 else group[0].heading
        panels.append(Panel(id_, title, group[0].rank, sections, is_open, bool(group[0].run)))
    return panels


def _listing(section: Listing) -> dict[str, Any]:
    lines = list(zip(section.cells, section.code, section.heat, strict=True))
    hot = sorted((number for number, line in enumerate(lines) if line[2] > 0), key=lambda number: -lines[number][2])
    hottest = hot[:_HOTTEST] if len(lines) > 2 * _HOTTEST else []  # a short file needs no summary
    return {
        "kind": "listing",
        "headings": section.headings,
        "path": section.path,
        "lines": lines,
        "hottest": hottest,
    }


def _data(value: Any) -> markupsafe.Markup:
    """JSON inside a script element, which ends at the first "</script"."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return markupsafe.Markup(text.replace("<", "\\u003c"))
