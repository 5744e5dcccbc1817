"""diff: which operators cause the difference between two runs of a program."""

from amanda.tools.diff.causal_diff import CausalDiff
from amanda.tools.diff.differences import RecordDiff
from amanda.tools.diff.matching import Parting
from amanda.tools.diff.record import Record
from amanda.tools.diff.recorder import Recorder
from amanda.tools.diff.rows import GroupBy, Row

__all__ = ["CausalDiff", "GroupBy", "Parting", "Record", "RecordDiff", "Recorder", "Row"]
