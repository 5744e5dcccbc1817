"""CuptiProfiler: every GPU kernel with the operator, module and line that caused it; times and bytes on the host."""

from .kernel_rows import KernelRow
from .line_rows import LineRow
from .operator_rows import OUTSIDE, GroupBy, OperatorRow
from .profiler import CuptiProfiler
from .roofline import RooflineRow

__all__ = ["OUTSIDE", "CuptiProfiler", "GroupBy", "KernelRow", "LineRow", "OperatorRow", "RooflineRow"]
