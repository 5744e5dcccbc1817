"""Clocks of several processes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from amanda.core import switches
from amanda.distributed.groups import initialized

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

ROUNDS = 20  # number of messages; the fastest one determines the difference of the clocks


def clock_offset(*, group: ProcessGroup | None = None) -> int:
    """The number of nanoseconds to add to this process's `time.perf_counter_ns` to get rank 0's.

    Every rank of the group must call it, and its backend must send tensors of the CPU, as gloo does. The offset is
    measured with messages to rank 0 and back. Half of the fastest message's time is the possible error (F. Cristian,
    "Probabilistic clock synchronization", 1989).

    Raises:
        RuntimeError: `torch.distributed` is not initialized.
    """
    dist = initialized()
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


def _measured(dist: Any, group: Any) -> tuple[int, int]:
    """The time of a message to rank 0 and back, and what to add to this clock."""
    import torch

    answer = torch.empty(1, dtype=torch.int64)
    sent = time.perf_counter_ns()
    dist.send(torch.tensor([sent]), group=group, group_dst=0)
    dist.recv(answer, group=group, group_src=0)
    received = time.perf_counter_ns()
    return received - sent, int(answer) - (sent + received) // 2
