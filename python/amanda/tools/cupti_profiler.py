"""CuptiProfiler: every GPU kernel with the operator, module and line that caused it; times and bytes on the host."""

from amanda.tools.cupti.kernel_rows import KernelRow
from amanda.tools.cupti.line_rows import LineRow
from amanda.tools.cupti.operator_rows import OUTSIDE, GroupBy, OperatorRow
from amanda.tools.cupti.profiler import CuptiProfiler
from amanda.tools.cupti.roofline import RooflineRow

__all__ = ["OUTSIDE", "CuptiProfiler", "GroupBy", "KernelRow", "LineRow", "OperatorRow", "RooflineRow"]
