"""trace: an expression over the operands of each operator that a filter selects, aggregated while the program runs."""

from amanda.tools.trace.expression import Expression
from amanda.tools.trace.rows import Aggregate, GroupBy, Row
from amanda.tools.trace.trace import Trace, trace

__all__ = ["Aggregate", "Expression", "GroupBy", "Row", "Trace", "trace"]
