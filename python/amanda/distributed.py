"""Several processes: brings together what tools have found in the ranks of `torch.distributed`."""

from __future__ import annotations

import dataclasses
import json
import os
import socket
import tempfile
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from amanda import switches
from amanda.reports import chrome_trace
from amanda.reports.rank_rows import VALUES, RankRow, RankRows, SpreadRow, first_value, part_of

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

__all__ = ["HasTrace", "RankRow", "RankRows", "SpreadRow", "clock_offset", "gather", "gather_trace"]

ROUNDS = 20  # of messages, of which the fastest tells the clocks' difference


class HasTrace(Protocol):
    """A tool that writes a trace, such as `Profile`."""

    def export_chrome_trace(self, path: str | os.PathLike[str]) -> None:
        """Writes a JSON file for Perfetto, with times of `time.perf_counter`."""


def gather(
    rows: Sequence[Any], *, value: str | None = None, to: int = 0, group: ProcessGroup | None = None
) -> RankRows | None:
    """Brings the rows of all ranks together, to see which rank is slow, and where::

        found = amanda.distributed.gather(profile.rows("module"))
        if found:  # on rank 0
            print(found.table(top=10))
            print(found.table("rank"))

    Every rank of the group must call it. Tools do not see its communication.

    Arguments:
        rows: of a tool, by what is to be compared; each rank may have others.
        value: the field to compare; None: the first that the rows have of device_ns, total_ns, host_ns, flops,
            calls, value. A missing value and NaN count as 0.
        to: the rank of the group that gets them.
        group: None: all ranks. On a backend for devices, such as NCCL, set the current device first.

    Returns:
        The rows of all ranks; None on the other ranks.

    Raises:
        RuntimeError: `torch.distributed` is not initialized.
        ValueError: the rows have no such field.
    """
    dist = _initialized()
    size = dist.get_world_size(group)
    is_receiver = dist.get_rank(group) == to
    found: list[Any] | None = [None] * size if is_receiver else None
    with switches.disabled():
        dist.gather_object((socket.gethostname(), list(rows)), found, group=group, group_dst=to)
    if found is None:
        return None
    of_rank, value = [rows for _, rows in found], _value_of([row for _, rows in found for row in rows], value)
    parts = [part_of(row, rank, value) for rank, of in enumerate(of_rank) for row in of]
    return RankRows(parts, dict(enumerate(host for host, _ in found)), value, of_rank=of_rank)


def clock_offset(*, group: ProcessGroup | None = None) -> int:
    """How many nanoseconds to add to this process's `time.perf_counter_ns` to get rank 0's.

    Every rank of the group must call it, and its backend must send tensors of the CPU, as gloo does. Found by messages to
    rank 0 and back; half of the fastest one's time is the possible error (F. Cristian, "Probabilistic clock
    synchronization", 1989).

    Raises:
        RuntimeError: `torch.distributed` is not initialized.
    """
    dist = _initialized()
    import torch

    offset = 0
    with switches.disabled():
        for rank in range(1, dist.get_world_size(group)):
            if dist.get_rank(group) == rank:
                offset = min(_measured(dist, group) for _ in range(ROUNDS))[1]
            elif dist.get_rank(group) == 0:
                for _ in range(ROUNDS):
                    dist.recv(torch.empty(1, dtype=torch.int64), group=group, group_src=rank)
                    dist.send(torch.tensor([time.perf_counter_ns()]), group=group, group_dst=rank)
        dist.barrier(group)
    return offset


def gather_trace(
    tool: HasTrace, path: str | os.PathLike[str], *, to: int = 0, group: ProcessGroup | None = None
) -> None:
    """Writes one trace of all ranks, each a process of its own, with their clocks aligned.

    Every rank of the group must call it, as `clock_offset`; the rank `to` writes the file.

    Arguments:
        tool: one that has a trace, such as `Profile`.
        path: of a JSON file for Perfetto.

    Raises:
        RuntimeError: `torch.distributed` is not initialized.
        OSError: the file cannot be written.
    """
    dist = _initialized()
    rank, offset = dist.get_rank(group), clock_offset(group=group)
    with tempfile.TemporaryDirectory() as folder:
        own = os.path.join(folder, "trace.json")
        tool.export_chrome_trace(own)
        with open(own, encoding="utf-8") as file:
            events = json.load(file)["traceEvents"]
    for event in events:
        event["pid"] = rank
        if "ts" in event:
            event["ts"] += offset / 1000
        if event["name"] == "process_name":
            event["args"]["name"] = f"rank {rank}, {socket.gethostname()}: {event['args']['name']}"
    events.append(chrome_trace.metadata("process_sort_index", rank, 0, sort_index=rank))
    found: list[Any] | None = [None] * dist.get_world_size(group) if rank == to else None
    with switches.disabled():
        dist.gather_object(events, found, group=group, group_dst=to)
    if found is not None:
        chrome_trace.write(path, [event for of_rank in found for event in of_rank])


def _initialized() -> Any:
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_initialized():
        raise RuntimeError(
            "[distributed] torch.distributed has no process group; call torch.distributed.init_process_group first"
        )
    return dist


def _measured(dist: Any, group: Any) -> tuple[int, int]:
    """The time of a message to rank 0 and back, and what to add to this clock."""
    import torch

    answer = torch.empty(1, dtype=torch.int64)
    sent = time.perf_counter_ns()
    dist.send(torch.tensor([sent]), group=group, group_dst=0)
    dist.recv(answer, group=group, group_src=0)
    received = time.perf_counter_ns()
    return received - sent, int(answer) - (sent + received) // 2


def _value_of(rows: Sequence[Any], value: str | None) -> str:
    if not rows:
        return value or VALUES[0]
    fields = [field.name for field in dataclasses.fields(rows[0])]
    known = first_value(dir(rows[0]), value)
    if known is None:
        asked = f"no field {value!r}" if value else f"none of {', '.join(VALUES)}"
        raise ValueError(f"[distributed] these rows have {asked}; value= is one of {', '.join(fields)}")
    return known
