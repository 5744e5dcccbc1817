"""One trace of several processes."""

from __future__ import annotations

import json
import os
import socket
import tempfile
from typing import TYPE_CHECKING, Any, Protocol

from amanda.distributed.clocks import clock_offset
from amanda.distributed.groups import gathered, initialized
from amanda.reports import chrome_trace

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


class HasTrace(Protocol):
    """A tool that writes a trace, such as `Profile`."""

    def export_chrome_trace(self, path: str | os.PathLike[str]) -> None:
        """Writes a JSON file for Perfetto, with times of `time.perf_counter`."""


def gather_trace(
    tool: HasTrace, path: str | os.PathLike[str], *, to: int = 0, group: ProcessGroup | None = None
) -> None:
    """Writes one trace of all ranks, each a process of its own, with their clocks aligned.

    Every rank of the group must call it, as `clock_offset`; the rank `to` writes the file.

    Arguments:
        tool: one that has a trace, such as `Profile`.
        path: of a JSON file for Perfetto.

    Raises:
        RuntimeError: `torch.distributed` is not initialized; on rank `to`, another rank has failed.
        ValueError: the group has no rank `to`.
        OSError: the file cannot be written.
    """
    dist = initialized()
    rank, offset = dist.get_rank(group), clock_offset(group=group)
    found = gathered(lambda: _events_of(tool, rank, offset), to, group)
    if found is not None:
        chrome_trace.write(path, [event for of_rank in found for event in of_rank])


def _events_of(tool: HasTrace, rank: int, offset: int) -> list[dict[str, Any]]:
    """The events of the tool's trace, with the times of rank 0."""
    with tempfile.TemporaryDirectory() as folder:
        own = os.path.join(folder, "trace.json")
        tool.export_chrome_trace(own)
        with open(own, encoding="utf-8") as file:
            events: list[dict[str, Any]] = json.load(file)["traceEvents"]
    for event in events:
        event["pid"] = rank
        if "ts" in event:
            event["ts"] += offset / 1000
        if "id" in event:  # of arrows, in the whole file
            event["id"] = f"{rank}.{event['id']}"
        if event.get("name") == "process_name":
            event["args"]["name"] = f"rank {rank}, {socket.gethostname()}: {event['args']['name']}"
    return [*events, chrome_trace.metadata("process_sort_index", rank, 0, sort_index=rank)]
