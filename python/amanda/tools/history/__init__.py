"""History: statistics of operators, gradients and parameters over the steps of a training run, and alarms."""

from .alarms import Alarm, HistoryWarning, Limits
from .history import History
from .rows import GroupBy, Row

__all__ = ["Alarm", "GroupBy", "History", "HistoryWarning", "Limits", "Row"]
