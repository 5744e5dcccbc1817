"""Several processes: brings together what tools have found in the ranks of `torch.distributed`."""

from amanda.distributed.clocks import clock_offset
from amanda.distributed.rows import gather
from amanda.distributed.traces import HasTrace, gather_trace
from amanda.distributed.waiting import Collectives, WaitRow, WaitRows, waiting
from amanda.reports.rank_rows import RankRow, RankRows, SpreadRow

__all__ = [
    "Collectives",
    "HasTrace",
    "RankRow",
    "RankRows",
    "SpreadRow",
    "WaitRow",
    "WaitRows",
    "clock_offset",
    "gather",
    "gather_trace",
    "waiting",
]
