"""A page about a run, or about several processes of one. It needs jinja2: import it where one is made."""

from __future__ import annotations

import datetime
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from amanda.cli.saved_runs import SavedRun
from amanda.core.coverage import section as coverage
from amanda.reports.html_page import HtmlPage
from amanda.reports.joined_tables import joined
from amanda.reports.progress import Progress
from amanda.reports.sections import KINDS, Listing, Section, Table, Text

_ORDER = list(KINDS.values())


def write(path: str, runs: Sequence[SavedRun]) -> None:
    """Writes what ran, then the sections of all tools: charts, source code, tables; then coverage and the environment.

    Arguments:
        runs: one for each process.

    Raises:
        OSError: the file cannot be written.
    """
    command = next((run.about["command"] for run in runs if run.about), ["a run"])
    page = HtmlPage(" ".join(command), "\n\n".join(map(_summary, runs)))
    sections: list[tuple[Section, int]] = [(section, run.rank) for run in runs for section in run.sections]
    sections.sort(key=lambda of_rank: (of_rank[0].heading == coverage.HEADING, _ORDER.index(type(of_rank[0]))))
    sections += [
        (Text("environment", run.about["environment"]), run.rank) for run in runs if "environment" in run.about
    ]
    with Progress("building the page", len(sections) + 1) as progress:  # and the file
        for section, rank in sections:
            progress.now(section.heading)
            page.add(section, rank if len(runs) > 1 else None)
            progress.advance()
        progress.now("writing the file")
        page.write(path)
        progress.advance()


def write_two(path: str, first: Sequence[SavedRun], second: Sequence[SavedRun], names: tuple[str, str]) -> None:
    """Writes a page about two runs: their tables as one, and each other section of one next to that of the other.

    Processes are compared by rank. Raises as `write`.

    Arguments:
        names: of the runs.
    """
    summaries = [f"{name}: {_summary(run)}" for name, runs in zip(names, (first, second), strict=True) for run in runs]
    page = HtmlPage(f"{names[0]} and {names[1]}", "\n\n".join(summaries))
    ranks = sorted({run.rank for run in (*first, *second)})
    for rank in ranks:
        sides = [[section for run in runs if run.rank == rank for section in run.sections] for runs in (first, second)]
        for section, run in _paired(sides[0], sides[1], names):
            page.add(section, rank if len(ranks) > 1 else None, run=run)
    page.write(path)


def _paired(first: Sequence[Section], second: Sequence[Section], names: tuple[str, str]) -> list[tuple[Section, str]]:
    """Sections with the same heading behind each other, in the order of a page of one run. Each has the name of its run,
    tables of both "".
    """
    found: list[tuple[Section, str]] = []
    theirs = {_key(section): section for section in second}
    for ours in first:
        other = theirs.pop(_key(ours), None)
        if isinstance(ours, Table) and isinstance(other, Table):
            found.append((joined(ours, other, names), ""))
        else:
            found += [(section, name) for name, section in zip(names, (ours, other), strict=True) if section]
    found += [(section, names[1]) for section in theirs.values()]
    return sorted(found, key=lambda one: (one[0].heading == coverage.HEADING, _ORDER.index(type(one[0]))))


def _key(section: Section) -> Hashable:
    """The same for sections of two runs that are about the same: headings of source code have numbers of the run."""
    tool = section.heading.partition(":")[0]
    return type(section), (tool, section.path) if isinstance(section, Listing) and section.path else section.heading


def _summary(run: SavedRun) -> str:
    about = run.about
    lines = [f"missing: {problem}" for problem in run.problems]
    if about:
        lines += [f"tools: {', '.join(about['tools'])}", _end(about)]
        lines += [f"amanda {about['amanda']}"]
        started = datetime.datetime.fromtimestamp(about["started"], datetime.UTC)
        rank = f", rank {about['rank']} of {about['world_size']}" if about["world_size"] > 1 else ""
        lines += [f"process {about['process']} on {about['host']}{rank}, from {started:%Y-%m-%d %H:%M:%S} UTC"]
    return "\n".join(lines)


def _end(about: Mapping[str, Any]) -> str:
    if about["state"] != "ended":
        return "not ended: it still runs, or was killed"
    ran = f"{about['operators']:,} operators ran, " if "operators" in about else ""
    return f"{ran}ended with status {about['status']} after {about['ended'] - about['started']:.1f} s"
