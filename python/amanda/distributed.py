"""Several processes: brings together what tools have found in the ranks of `torch.distributed`."""

from __future__ import annotations

import dataclasses
import json
import os
import pickle
import socket
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol

from amanda import switches
from amanda.reports import chrome_trace
from amanda.reports.columns import general_column, name_column, number_column, percentage_column
from amanda.reports.data_frame import fields_of
from amanda.reports.results import Grouping, Results

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

VALUES = ("device_ns", "total_ns", "host_ns", "flops", "calls")
ROUNDS = 20  # of messages, of which the fastest tells the clocks' difference


@dataclasses.dataclass(frozen=True)
class SpreadRow:
    """What ranks have under one name: an operator type, a module, a line.

    A rank that has no such row counts as 0.
    """

    name: str
    ranks: int  # that have it
    least: float
    median: float
    most: float
    slowest_rank: int  # the one that has the most
    imbalance: float  # most / mean - 1: the part of the mean that the other ranks wait for the slowest


@dataclasses.dataclass(frozen=True)
class RankRow:
    """All rows of one rank."""

    name: str  # "rank 3"
    rank: int
    host: str
    rows: int
    total: float
    above_mean: float  # total / the mean of all ranks - 1


class HasTrace(Protocol):
    """A tool that writes a trace, such as `Profile`."""

    def export_chrome_trace(self, path: str | os.PathLike[str]) -> None:
        """Writes a JSON file for Perfetto, with times of `time.perf_counter`."""


class RankRows(Results[SpreadRow | RankRow, Literal["name", "rank"]]):
    """Rows of all ranks: tables by "name" (the default: how ranks differ) and by "rank". Made by `gather`.

    Attributes:
        of_rank: the rows of each rank, as they were given to `gather`.
        hosts: of each rank.
        value: the rows' field that tables compare.
    """

    _speaker = "distributed"
    _groupings = {
        "name": Grouping(
            (
                name_column("name"),
                number_column("ranks", "ranks"),
                *(general_column(name, name) for name in ("least", "median", "most")),
                number_column("slowest rank", "slowest_rank"),
                percentage_column("imbalance", "imbalance"),
            ),
            fields_of(SpreadRow),
        ),
        "rank": Grouping(
            (
                name_column("rank"),
                number_column("rows", "rows"),
                general_column("total", "total"),
                percentage_column("above mean", "above_mean"),
            ),
            fields_of(RankRow),
        ),
    }

    def __init__(self, of_rank: Sequence[Sequence[Any]], hosts: Sequence[str], value: str) -> None:
        self.of_rank, self.hosts, self.value = [list(rows) for rows in of_rank], list(hosts), value

    def reset(self) -> None:
        """Forgets all rows."""
        self.of_rank = [[] for _ in self.of_rank]

    def _rows(self, by: str) -> list[SpreadRow | RankRow]:
        return [*(self._ranks() if by == "rank" else self._spread())]

    def _remarks(self, by: str) -> list[str]:
        return [f"{self.value} of {len(self.of_rank)} ranks"]

    def _spread(self) -> list[SpreadRow]:
        names: dict[tuple[str, Any], dict[int, float]] = defaultdict(lambda: defaultdict(float))
        for rank, rows in enumerate(self.of_rank):
            for row in rows:
                names[row.name, getattr(row, "op_id", None)][rank] += getattr(row, self.value) or 0
        found = [self._spread_row(name, of_rank) for (name, _), of_rank in names.items()]
        return sorted(found, key=lambda row: -row.most)

    def _spread_row(self, name: str, of_rank: Mapping[int, float]) -> SpreadRow:
        values = [of_rank.get(rank, 0.0) for rank in range(len(self.of_rank))]
        most, mean = max(values), statistics.fmean(values)
        imbalance = most / mean - 1 if mean else 0.0
        return SpreadRow(
            name, len(of_rank), min(values), statistics.median(values), most, values.index(most), imbalance
        )

    def _ranks(self) -> list[RankRow]:
        totals = [sum(getattr(row, self.value) or 0 for row in rows) for rows in self.of_rank]
        mean = statistics.fmean(totals)
        return [
            RankRow(f"rank {rank}, {host}", rank, host, len(rows), total, total / mean - 1 if mean else 0.0)
            for rank, (rows, host, total) in enumerate(zip(self.of_rank, self.hosts, totals, strict=True))
        ]


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
        value: the field to compare; None: the first of `VALUES` that the rows have.
        to: the rank of the group that gets them.
        group: None: all ranks. On a backend for devices, such as NCCL, set the current device first.

    Returns:
        The rows of all ranks; None on the other ranks.

    Raises:
        RuntimeError: `torch.distributed` is not initialized; on rank `to`, another rank has failed.
        TypeError: the rows are not those of a tool.
        ValueError: the rows have no such field, or it is not a number; the group has no rank `to`.
        Exception: the rows cannot be pickled.
    """
    found = _gathered(lambda: (socket.gethostname(), _checked(rows, value)), to, group)
    if found is None:
        return None
    of_rank = [of for _, of in found]
    return RankRows(of_rank, [host for host, _ in found], _value_of(of_rank, value))


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
        RuntimeError: `torch.distributed` is not initialized; on rank `to`, another rank has failed.
        ValueError: the group has no rank `to`.
        OSError: the file cannot be written.
    """
    dist = _initialized()
    rank, offset = dist.get_rank(group), clock_offset(group=group)
    found = _gathered(lambda: _events_of(tool, rank, offset), to, group)
    if found is not None:
        chrome_trace.write(path, [event for of_rank in found for event in of_rank])


def _initialized() -> Any:
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_initialized():
        raise RuntimeError(
            "[distributed] torch.distributed has no process group; call torch.distributed.init_process_group first"
        )
    return dist


def _gathered(make: Callable[[], Any], to: int, group: ProcessGroup | None) -> list[Any] | None:
    """What `make` returns on each rank; None on ranks other than `to`.

    If `make` fails, or what it returns cannot be pickled, this rank tells `to` instead of leaving the others waiting.
    """
    dist = _initialized()
    size, rank = dist.get_world_size(group), dist.get_rank(group)
    if rank >= 0 and to not in range(size):  # -1: this process is not in the group
        raise ValueError(f"[distributed] to= is a rank of the group, which has {size}, got {to!r}")
    packed, failure = b"", None
    try:
        packed = pickle.dumps(make())
    except Exception as error:
        failure = error
    found: list[Any] | None = [None] * size if rank == to else None
    with switches.disabled():
        dist.gather_object(
            (packed, failure and f"{type(failure).__name__}: {failure}"), found, group=group, group_dst=to
        )
    if failure is not None:
        raise failure
    if found is None:
        return None
    for number, (_, text) in enumerate(found):
        if text is not None:
            raise RuntimeError(f"[distributed] rank {number} has failed: {text}")
    return [pickle.loads(of_rank) for of_rank, _ in found]


def _events_of(tool: HasTrace, rank: int, offset: int) -> list[dict[str, Any]]:
    """Of its trace, with the times of rank 0."""
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


def _measured(dist: Any, group: Any) -> tuple[int, int]:
    """The time of a message to rank 0 and back, and what to add to this clock."""
    import torch

    answer = torch.empty(1, dtype=torch.int64)
    sent = time.perf_counter_ns()
    dist.send(torch.tensor([sent]), group=group, group_dst=0)
    dist.recv(answer, group=group, group_src=0)
    received = time.perf_counter_ns()
    return received - sent, int(answer) - (sent + received) // 2


def _checked(rows: Sequence[Any], value: str | None) -> list[Any]:
    for row in rows:
        if not hasattr(row, "name"):
            raise TypeError(f"[distributed] gather takes rows of a tool, as profile.rows() returns them, got {row!r}")
        _value_of([[row]], value)
    return list(rows)


def _value_of(of_rank: Sequence[Sequence[Any]], value: str | None) -> str:
    """The field to compare, which all rows have."""
    rows = [row for rows in of_rank for row in rows]
    for name in VALUES if value is None else [value]:
        if all(_is_number(row, name) for row in rows):
            return name
    asked = f"the number {value!r}" if value else f"one of {', '.join(VALUES)}"
    numbers = [name for name in dir(rows[0]) if not name.startswith("_") and _is_number(rows[0], name)]
    raise ValueError(f"[distributed] not all rows have {asked}; those of the first are {', '.join(numbers)}")


def _is_number(row: Any, name: str) -> bool:
    return isinstance(getattr(row, name, ""), int | float | None)
