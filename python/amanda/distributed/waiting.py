"""Waiting: how long each rank's collectives wait for other ranks, and how long the ranks are blocked by that."""

from __future__ import annotations

import dataclasses
import importlib
import socket
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from amanda.core.tool import Tool
from amanda.distributed import waits
from amanda.distributed.clocks import clock_offset
from amanda.distributed.groups import gathered, initialized
from amanda.reports.columns import name_column, number_column
from amanda.reports.data_frame import fields_of
from amanda.reports.results import Grouping, Results
from amanda.reports.rich_table import Column

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


class Collectives(Tool):
    """Notes when this process starts each collective of `torch.distributed`, and waits for it, for `waiting`::

        collectives = amanda.distributed.Collectives()
        with amanda.apply(collectives):
            train(model)
        found = amanda.distributed.waiting(collectives)

    Also those that `DistributedDataParallel` and FSDP start in the backward pass, where tools see no operators. It analyzes
    no operator and changes nothing; while the scope is open, every operator of the process calls a callback of
    `RecordFunction`, and `torch.distributed.Work.wait` is a function that calls PyTorch's.
    Every rank enters and leaves the scope at the same place, between collectives. `send` and `recv` are left out.
    """

    def __init__(self) -> None:
        super().__init__()
        self._recorder: Any = None

    def on_enter(self) -> None:
        if self._recorder is None:
            self._recorder = importlib.import_module("amanda._torch_tools").CollectiveRecorder()  # it loads PyTorch
        self._recorder.start()
        waits.note_in(self._recorder)

    def on_exit(self, error: BaseException | None) -> None:
        waits.stop_noting_in(self._recorder)
        self._recorder.stop()

    def started(self) -> list[tuple[str, str, int]]:
        """The operator of each collective, such as ``c10d::barrier``, its group's name, and its
        `time.perf_counter_ns`."""
        return [(op, group, time_ns) for op, group, time_ns, _ in self._rows()]

    def _rows(self) -> list[_Started]:
        return [] if self._recorder is None else [_Started(*row) for row in self._recorder.rows()]

    def reset(self) -> None:
        """Forgets all collectives. Every rank calls it at the same place."""
        self.reset_evidence()
        if self._recorder is not None:
            self._recorder.reset()


@dataclasses.dataclass(frozen=True)
class WaitRow:
    """The collectives of one rank: of one operator in one group, or by "rank" all.

    A collective of a rank waits from its own start until the last rank of the group has started it: it cannot end before.
    """

    name: str  # "c10d::allreduce_"; by "rank" "rank 3, host"
    group: str  # its name; by "rank" ""
    rank: int
    host: str
    calls: int
    waited_ns: int  # all calls together
    longest_ns: int
    last: int  # calls that this rank was the last one to start: others waited for it
    blocked_ns: int | None  # the part of `waited_ns` in calls and waits of the program; None if no wait is known
    blocked_calls: int  # calls whose wait is known


class WaitRows(Results[WaitRow, Literal["rank", "op"]]):
    """Rows by "rank" (the default) and "op", longest waiting first. Made by `waiting`."""

    _speaker = "waiting"
    _columns_of_times = (
        number_column("calls", "calls"),
        number_column("waited ms", "waited_ns", 1e6, 2),
        number_column("longest ms", "longest_ns", 1e6, 2),
        number_column("last to start", "last"),
        number_column("blocked ms", "blocked_ns", 1e6, 2),
        number_column("in calls", "blocked_calls"),
    )
    _groupings = {
        "rank": Grouping((name_column("rank"), *_columns_of_times), fields_of(WaitRow)),
        "op": Grouping(
            (
                name_column("op"),
                Column("group", lambda row: row.group, left=True, field="group"),
                number_column("rank", "rank"),
                *_columns_of_times,
            ),
            fields_of(WaitRow),
        ),
    }

    def __init__(self, calls: Sequence[_Call], hosts: Mapping[int, str]) -> None:
        self._calls, self._hosts = list(calls), hosts

    def reset(self) -> None:
        """Forgets all rows."""
        self._calls = []

    def _rows(self, by: str) -> list[WaitRow]:
        groups: dict[tuple[str, str, int], list[_Call]] = {}
        for call in self._calls:
            name = f"rank {call.rank}, {self._hosts[call.rank]}" if by == "rank" else call.op
            groups.setdefault((name, "" if by == "rank" else call.group, call.rank), []).append(call)
        rows = [
            WaitRow(
                *(name, group, rank, self._hosts[rank], len(calls)),
                sum(call.waited_ns for call in calls),
                max(call.waited_ns for call in calls),
                sum(call.is_last for call in calls),
                _sum([call.blocked_ns for call in calls]),
                sum(call.blocked_ns is not None for call in calls),
            )
            for (name, group, rank), calls in groups.items()
        ]
        return sorted(rows, key=lambda row: -row.waited_ns)


class _Started(NamedTuple):
    op: str
    group: str
    time_ns: int
    inside: Sequence[tuple[int, int]]  # start and end of the call, then of the wait, if it was one in Python

    def moved(self, by_ns: int) -> _Started:
        """The same on another clock, whose times are larger by `by_ns`."""
        inside = [(start_ns + by_ns, end_ns + by_ns) for start_ns, end_ns in self.inside]
        return self._replace(time_ns=self.time_ns + by_ns, inside=inside)

    def blocked_until(self, latest_ns: int) -> int | None:
        if len(self.inside) < 2:
            return None
        return sum(max(0, min(end_ns, latest_ns) - start_ns) for start_ns, end_ns in self.inside)


class _Call(NamedTuple):
    op: str
    group: str
    rank: int
    waited_ns: int
    is_last: bool
    blocked_ns: int | None


def waiting(collectives: Collectives, *, to: int = 0, group: ProcessGroup | None = None) -> WaitRows | None:
    """The time that each rank's collectives waited for other ranks, the rank that came last, and who was blocked
    meanwhile.

    The n-th collective of a group is the same one in all of its ranks. Their starts are compared, with clocks aligned by
    `clock_offset`: a rank waits from its own start until the last one's. If the program does other work meanwhile, as DDP's
    backward pass does, the process itself may wait for a shorter time, or not at all: it is blocked while it is inside the
    call of the collective, or in `wait` of its work, until the last rank has started. Waits in C++, as at the end of DDP's
    backward pass, are not known. The possible error of a call is that of the clocks.

    Every rank of `group` must call it, after the scope; its backend must send tensors of the CPU, as gloo does. Collectives
    of other groups are compared between those ranks that have them; all of these must be in `group`.

    Arguments:
        collectives: those of this rank.
        to: the rank of the group that gets the rows.
        group: the process group; all ranks by default. Ranks in rows are those of this group.

    Returns:
        `WaitRows`; None on the other ranks.

    Raises:
        RuntimeError: `torch.distributed` is not initialized; or ranks have not started the same collectives.
    """
    dist = initialized()
    started = collectives._rows()  # before those of this function
    offset = clock_offset(group=group)
    mine = (socket.gethostname(), [row.moved(offset) for row in started])
    found = gathered(lambda: mine, to, group)
    if found is None:
        return None
    whole = (group or dist.group.WORLD).group_name
    return WaitRows(_calls([of for _, of in found], whole), dict(enumerate(host for host, _ in found)))


def _sum(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _calls(of_rank: Sequence[Sequence[_Started]], whole: str) -> list[_Call]:
    """`whole`: the name of the group of all these ranks."""
    groups: dict[str, dict[int, list[_Started]]] = {}
    if any(row.group == whole for started in of_rank for row in started):
        groups[whole] = {rank: [] for rank in range(len(of_rank))}
    for rank, started in enumerate(of_rank):
        for row in started:
            groups.setdefault(row.group, {}).setdefault(rank, []).append(row)
    calls = []
    for group, members in groups.items():
        _check_same(group, {rank: [row.op for row in started] for rank, started in members.items()})
        for same in zip(*members.values(), strict=True):
            latest = max(row.time_ns for row in same)
            calls += [
                _Call(row.op, group, rank, latest - row.time_ns, row.time_ns == latest, row.blocked_until(latest))
                for rank, row in zip(members, same, strict=True)
            ]
    return calls


def _check_same(group: str, operators: Mapping[int, Sequence[str]]) -> None:
    (first, expected), *others = operators.items()
    for rank, ops in others:
        if ops != expected:
            at = next((i for i, pair in enumerate(zip(expected, ops, strict=False)) if pair[0] != pair[1]), None)
            where = (
                f"{len(expected)} and {len(ops)} of them"
                if at is None
                else f"number {at} is {expected[at]} and {ops[at]}"
            )
            raise RuntimeError(
                f"[distributed] ranks {first} and {rank} have not started the same collectives in group {group!r}: "
                f"{where}; enter and leave the scope at the same place in all ranks"
            )
