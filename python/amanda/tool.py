"""The module `amanda.tool` of the paper's programs, with the tools written in C++."""

from amanda.core.scope import apply
from amanda.core.tool import ON_DEMAND, NativeTool, Tool

__all__ = ["ON_DEMAND", "NativeTool", "Tool", "apply"]
