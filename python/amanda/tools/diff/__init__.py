"""diff: which operators cause the difference between two runs of a program."""

from .causal_diff import CausalDiff
from .differences import RecordDiff, tolerances_of
from .matching import Parting
from .record import Record
from .recorder import Recorder
from .rows import GroupBy, Row
from .tolerances import Tolerances

__all__ = [
    "CausalDiff",
    "GroupBy",
    "Parting",
    "Record",
    "RecordDiff",
    "Recorder",
    "Row",
    "Tolerances",
    "tolerances_of",
]
