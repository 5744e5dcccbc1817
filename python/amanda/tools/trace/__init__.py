"""trace: an expression over the operands of each operator that a filter selects, aggregated while the program runs."""

from .expression import Expression
from .rows import Aggregate, GroupBy, Row
from .tracing import Trace, trace

__all__ = ["Aggregate", "Expression", "GroupBy", "Row", "Trace", "trace"]
