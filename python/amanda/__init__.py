"""Amanda: instrumentation for neural networks. A tool sees and edits every operator of an unmodified model."""

from amanda import _torch_driver, tool, tools
from amanda._core import Action, CacheInfo, Error, Operator, __version__
from amanda.coverage_report import CoverageReport
from amanda.op_context import OpContext
from amanda.scope import Scope, apply
from amanda.switches import cache_disabled, cache_enabled, disabled, enabled, is_cache_enabled, is_enabled
from amanda.tool import ON_DEMAND, Tool

_torch_driver.load()

__all__ = [
    "ON_DEMAND",
    "Action",
    "CacheInfo",
    "CoverageReport",
    "Error",
    "OpContext",
    "Operator",
    "Scope",
    "Tool",
    "__version__",
    "apply",
    "cache_disabled",
    "cache_enabled",
    "disabled",
    "enabled",
    "is_cache_enabled",
    "is_enabled",
    "tool",
    "tools",
]
