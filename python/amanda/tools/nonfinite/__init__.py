"""NaNSentinel: which operator produced the first NaN, forward or backward."""

from .finding import Finding, NonfiniteError, NonfiniteWarning, Operand
from .sentinel import NaNSentinel

__all__ = ["Finding", "NaNSentinel", "NonfiniteError", "NonfiniteWarning", "Operand"]
