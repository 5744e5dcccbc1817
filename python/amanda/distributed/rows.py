"""Rows of several processes."""

from __future__ import annotations

import dataclasses
import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from amanda import switches
from amanda.distributed.groups import initialized
from amanda.reports.rank_rows import VALUES, RankRows, first_value, part_of

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


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
    dist = initialized()
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


def _value_of(rows: Sequence[Any], value: str | None) -> str:
    if not rows:
        return value or VALUES[0]
    fields = [field.name for field in dataclasses.fields(rows[0])]
    known = first_value(dir(rows[0]), value)
    if known is None:
        asked = f"no field {value!r}" if value else f"none of {', '.join(VALUES)}"
        raise ValueError(f"[distributed] these rows have {asked}; value= is one of {', '.join(fields)}")
    return known
