"""Amanda: instrumentation for neural networks. A tool sees and edits every operator of an unmodified model."""

import logging

from amanda import _core, drivers, ops, tool, tools
from amanda._core import Action, CacheInfo, Error, Operator, __version__
from amanda.coverage.report import CoverageReport
from amanda.drivers.torch import TorchDriver
from amanda.op_context import OpContext
from amanda.scope import Scope, apply
from amanda.switches import cache_disabled, cache_enabled, disabled, enabled, is_cache_enabled, is_enabled
from amanda.tool import ON_DEMAND, Tool
from amanda.unmatched import UnmatchedFilterWarning

vars(tool)["apply"] = apply  # the original Amanda has it there, too
_core.set_log_sink(logging.getLogger("amanda").warning)
drivers.register(TorchDriver())

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
    "UnmatchedFilterWarning",
    "__version__",
    "apply",
    "cache_disabled",
    "cache_enabled",
    "disabled",
    "enabled",
    "is_cache_enabled",
    "is_enabled",
    "ops",
    "tool",
    "tools",
]
