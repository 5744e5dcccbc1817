"""PeakMemory: what is in memory when most of it is in use, which operators made it, and what keeps it."""

from .leak_rows import LeakBy, LeakRow
from .memory_growth import MemoryGrowth
from .peak_memory import PeakMemory
from .rows import GroupBy, Kind, Row
from .snapshot import MemorySnapshot

__all__ = ["GroupBy", "Kind", "LeakBy", "LeakRow", "MemoryGrowth", "MemorySnapshot", "PeakMemory", "Row"]
