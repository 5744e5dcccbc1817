"""Programs: what a tool does around the program that it looks at, and which process of it this is."""

from amanda.drivers import preserved
from amanda.reports.rank import Rank, this_rank
from amanda.switches import own_work
from amanda.unmatched import warn_here

__all__ = ["Rank", "own_work", "preserved", "this_rank", "warn_here"]
