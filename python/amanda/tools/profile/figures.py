"""The charts of a Profile: where the time of modules goes, and when operators ran."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from amanda.toolkit.figures import MOST_BARS, Icicle, Timeline, icicle_of
from amanda.toolkit.frames import short_line

from .rows import Row
from .trace import Site


def modules(rows: Sequence[Row]) -> Icicle:
    """The time of modules and their submodules, and of the operators that each calls itself. `rows`: by "id"."""
    costs = [
        ([*filter(None, row.module_path.split(".")), row.name.removeprefix("aten::")], row.total_ns / 1e6)
        for row in sorted(rows, key=lambda row: row.op_id or 0)  # the program's order
    ]
    return icicle_of("time of modules and their operators", "ms", "program", costs)


def timeline(
    recorded: tuple[Sequence[tuple[int, int, int, int, int]], Mapping[int, str], int], sites: Sequence[Site]
) -> Timeline:
    """The longest runs of operators. `recorded`: what the recorder's `trace()` returns."""
    events, threads, dropped = recorded
    shown = sorted(sorted(events, key=lambda event: -event[3])[:MOST_BARS], key=lambda event: event[2])
    captions = [f"the {len(shown):,} longest of {len(events):,} runs"] if len(shown) < len(events) else []
    if dropped:
        captions.append(f"{dropped:,} later runs were not kept: Profile(max_events=...) keeps more")
    began = min((start for _, _, start, _, _ in events), default=0)
    tracks = list(dict.fromkeys(thread for _, thread, *_ in shown))
    names = [f"{threads.get(thread) or 'thread'} ({thread})" for thread in tracks]
    ran = [sites[site] for site, *_ in shown]
    return Timeline(
        "operators over time",
        "\n".join(captions),
        names,
        [tracks.index(thread) for _, thread, *_ in shown],
        [(start - began) / 1e6 for _, _, start, _, _ in shown],
        [duration / 1e6 for _, _, _, duration, _ in shown],
        [site.backward_op or site.place.name for site in ran],
        [", ".join(filter(None, [site.place.module_path, short_line(site.place.source)])) for site in ran],
        ["backward" if site.backward_op else "forward" for site in ran],
    )
