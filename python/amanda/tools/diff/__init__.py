"""diff: which operators cause the difference between two runs of a program."""

from .causal_diff import CausalDiff
from .differences import RecordDiff
from .matching import Parting
from .record import Record
from .recorder import Recorder
from .rows import GroupBy, Row

__all__ = ["CausalDiff", "GroupBy", "Parting", "Record", "RecordDiff", "Recorder", "Row"]
