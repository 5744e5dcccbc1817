"""History: statistics of operators, gradients and parameters over the steps of a training run, and alarms."""

from .alarms import Alarm, HistoryWarning, Limits
from .history import History
from .parameter_histograms import Histogram
from .rows import GroupBy, Row

__all__ = ["Alarm", "GroupBy", "Histogram", "History", "HistoryWarning", "Limits", "Row"]
