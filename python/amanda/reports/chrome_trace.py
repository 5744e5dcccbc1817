"""Chrome traces: JSON that Perfetto and chrome://tracing open. Times are given in nanoseconds."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

Event = dict[str, Any]


def write(path: str | os.PathLike[str], events: Iterable[Event], **head: Any) -> None:
    """Writes the events, and the items of `head` next to them."""
    trace = {"traceEvents": list(events), "displayTimeUnit": "ms", **head}
    with open(path, "w", encoding="utf-8") as file:
        json.dump(trace, file)


def metadata(what: str, pid: int, tid: int, **args: Any) -> Event:
    """A name or an order of processes and threads, such as "thread_name"."""
    return {"name": what, "ph": "M", "pid": pid, "tid": tid, "args": args}


def slice_of(name: str, category: str, pid: int, tid: int, start_ns: int, end_ns: int, **args: Any) -> Event:
    """A bar on the track of a thread."""
    return {
        "name": name,
        "cat": category,
        "ph": "X",
        "ts": start_ns / 1000,
        "dur": (end_ns - start_ns) / 1000,
        "pid": pid,
        "tid": tid,
        "args": args,
    }


def arrow(name: str, number: int, steps: Sequence[tuple[int, int, int]]) -> Iterator[Event]:
    """An arrow through the slices that begin at these (time, pid, tid). Its number is unique among arrows of that
    name."""
    if len(steps) < 2:
        return
    for position, (time_ns, pid, tid) in enumerate(steps):
        last = position == len(steps) - 1
        phase = "s" if position == 0 else "f" if last else "t"
        event = {"name": name, "cat": "flow", "ph": phase, "id": number, "ts": time_ns / 1000, "pid": pid, "tid": tid}
        yield event | ({"bp": "e"} if last else {})
