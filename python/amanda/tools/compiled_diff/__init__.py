"""compiled_diff: where code that torch.compile has made differs from the same operators run eagerly."""

from .compiled_diff import CompiledDiff
from .rows import GroupBy, Row

__all__ = ["CompiledDiff", "GroupBy", "Row"]
