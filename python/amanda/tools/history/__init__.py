"""History: statistics of operators, gradients and parameters over the steps of a training run, and alarms."""

from amanda.tools.history.alarms import Alarm, HistoryWarning, Limits
from amanda.tools.history.history import History
from amanda.tools.history.rows import GroupBy, Row

__all__ = ["Alarm", "GroupBy", "History", "HistoryWarning", "Limits", "Row"]
