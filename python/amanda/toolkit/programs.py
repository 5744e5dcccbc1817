"""Programs: what a tool does around the program that it looks at, and which process of it this is."""

from amanda.core.switches import own_work
from amanda.core.unmatched import warn_here
from amanda.driver.registry import preserved
from amanda.reports.rank import Rank, this_rank

__all__ = ["Rank", "own_work", "preserved", "this_rank", "warn_here"]
