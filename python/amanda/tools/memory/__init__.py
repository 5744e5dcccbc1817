"""PeakMemory: what is in memory when most of it is in use, which operators made it, and what keeps it."""

from amanda.tools.memory.peak_memory import PeakMemory
from amanda.tools.memory.rows import GroupBy, Kind, Row
from amanda.tools.memory.snapshot import MemorySnapshot

__all__ = ["GroupBy", "Kind", "MemorySnapshot", "PeakMemory", "Row"]
