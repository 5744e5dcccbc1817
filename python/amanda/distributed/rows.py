"""Rows of several processes."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from amanda.distributed.groups import gathered
from amanda.reports.rank_rows import VALUES, RankRows, part_of

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
        rows: the rows of a tool, grouped by what is to be compared. Ranks may have different rows.
        value: the field to compare. By default, the first field that the rows have of device_ns, total_ns, host_ns,
            flops, calls, value. A missing value and NaN count as 0.
        to: the rank of the group that gets the rows.
        group: the process group; all ranks by default. On a backend for devices, such as NCCL, set the current device
            first.

    Returns:
        The rows of all ranks; None on the other ranks.

    Raises:
        RuntimeError: `torch.distributed` is not initialized; on rank `to`, another rank has failed.
        TypeError: the rows are not those of a tool.
        ValueError: the rows have no such field, or it is not a number; the group has no rank `to`.
        Exception: the rows cannot be pickled.
    """
    found = gathered(lambda: (socket.gethostname(), _checked(rows, value)), to, group)
    if found is None:
        return None
    of_rank, value = [rows for _, rows in found], _value_of([row for _, rows in found for row in rows], value)
    parts = [part_of(row, rank, value) for rank, of in enumerate(of_rank) for row in of]
    return RankRows(parts, dict(enumerate(host for host, _ in found)), value, of_rank=of_rank)


def _checked(rows: Sequence[Any], value: str | None) -> list[Any]:
    for row in rows:
        if not hasattr(row, "name"):
            raise TypeError(f"[distributed] gather takes rows of a tool, as profile.rows() returns them, got {row!r}")
        _value_of([row], value)
    return list(rows)


def _value_of(rows: Sequence[Any], value: str | None) -> str:
    """The field to compare, which all rows have."""
    for name in VALUES if value is None else [value]:
        if all(_is_number(row, name) for row in rows):
            return name
    asked = f"the number {value!r}" if value else f"one of {', '.join(VALUES)}"
    numbers = [name for name in dir(rows[0]) if not name.startswith("_") and _is_number(rows[0], name)]
    raise ValueError(f"[distributed] not all rows have {asked}; those of the first are {', '.join(numbers)}")


def _is_number(row: Any, name: str) -> bool:
    return isinstance(getattr(row, name, ""), int | float | None)
