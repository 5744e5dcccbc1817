"""The runs of a Profile as a trace for Perfetto."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from amanda.toolkit import Place, chrome_trace


class Site(NamedTuple):
    """A forward operator, or one of its backward operators."""

    place: Place  # of the forward operator
    user_line: str
    backward_op: str  # "AddmmBackward0"; "" for the forward operator

    def group(self, by: str) -> Place:
        """The group to which it belongs."""
        if by == "user_line":
            return Place(None, self.user_line, "", self.user_line)
        return self.place.group(by)


class _Event(NamedTuple):
    site: Site
    thread: int
    start_ns: int
    duration_ns: int
    output_bytes: int

    def in_trace(self, pid: int) -> chrome_trace.Event:
        place, _, backward_op = self.site
        return chrome_trace.slice_of(
            backward_op or place.name,
            "backward operator" if backward_op else "operator",
            pid,
            self.thread,
            self.start_ns,
            self.start_ns + self.duration_ns,
            op=place.name,
            module_path=place.module_path,
            source=place.source,
            output_bytes=self.output_bytes,
        )


def write(
    path: str | os.PathLike[str],
    recorded: tuple[Sequence[tuple[int, int, int, int, int]], Mapping[int, str], int],
    sites: Sequence[Site],
    max_events: int,
) -> None:
    """See `Profile.export_chrome_trace`. `recorded`: what the recorder's `trace()` returns."""
    events, threads, dropped = recorded
    process = "amanda.tools.profile"
    if dropped:
        process += f" ({dropped} later runs dropped)"
        held = f"{os.fspath(path)} has the first {len(events)} runs, and {dropped} more were dropped"
        logging.getLogger("amanda").warning("[profile] %s; raise Profile(max_events=%d)", held, max_events)
    pid = os.getpid()
    trace = [chrome_trace.metadata("process_name", pid, 0, name=process)]
    trace += [chrome_trace.metadata("thread_name", pid, thread, name=name) for thread, name in threads.items()]
    trace += [_Event(sites[site], *measured).in_trace(pid) for site, *measured in events]
    chrome_trace.write(path, trace, otherData={"dropped_events": dropped})
