"""NaNSentinel: which operator produced the first NaN, forward or backward."""

from amanda.tools.nonfinite.finding import Finding, NonfiniteError, NonfiniteWarning, Operand
from amanda.tools.nonfinite.sentinel import NaNSentinel

__all__ = ["Finding", "NaNSentinel", "NonfiniteError", "NonfiniteWarning", "Operand"]
