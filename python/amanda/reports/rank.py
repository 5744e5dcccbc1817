"""The rank of this process, as files of several processes carry it."""

from __future__ import annotations

import os
import socket
import sys
from typing import NamedTuple


class Rank(NamedTuple):
    """One of the processes that run a program together."""

    number: int
    world_size: int
    host: str

    @property
    def folder(self) -> str:
        """The rank's part of a dataset, in the words of Hive partitions: "rank=3"."""
        return f"rank={self.number}"

    @property
    def suffix(self) -> str:
        """For names in a folder that all ranks share: ".rank3"; "" if there is one rank."""
        return f".rank{self.number}" if self.world_size > 1 else ""


def this_rank() -> Rank:
    """The rank in `torch.distributed`, if it is initialized; otherwise that of RANK and WORLD_SIZE, which launchers
    set."""
    host = socket.gethostname()
    torch_distributed = sys.modules.get("torch.distributed")  # not imported for this
    if torch_distributed is not None and torch_distributed.is_available() and torch_distributed.is_initialized():
        return Rank(torch_distributed.get_rank(), torch_distributed.get_world_size(), host)
    number, count = os.environ.get("RANK", ""), os.environ.get("WORLD_SIZE", "")
    return Rank(int(number) if number.isdigit() else 0, int(count) if count.isdigit() else 1, host)
