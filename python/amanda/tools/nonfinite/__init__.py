"""NaNSentinel: which operator produced the first NaN, forward or backward."""

from .finding import Finding, NonfiniteError, NonfiniteWarning, Operand
from .links import Link
from .sentinel import NaNSentinel

__all__ = ["Finding", "Link", "NaNSentinel", "NonfiniteError", "NonfiniteWarning", "Operand"]
