"""Amanda: instrumentation for neural networks. A tool sees and edits every operator of an unmodified model."""

import importlib
import os
from typing import TYPE_CHECKING

from amanda.core import main_interpreter  # noqa: F401  # first of all

# isort: split
from amanda import _build, _core, ops, tool
from amanda._core import Action, CacheInfo, Error, Operator, __version__
from amanda.core import log_lines, moved, other_project, write_check
from amanda.core.coverage.report import CoverageReport
from amanda.core.evidence import Evidence
from amanda.core.near_names import did_you_mean
from amanda.core.op_context import OpContext
from amanda.core.op_run import Run
from amanda.core.roots import root
from amanda.core.schedule import Schedule
from amanda.core.scheduled_scope import ScheduledScope, scheduled
from amanda.core.scope import Scope, apply
from amanda.core.step_tool import StepTool
from amanda.core.switches import cache_disabled, cache_enabled, disabled, enabled, is_cache_enabled, is_enabled
from amanda.core.tool import ON_DEMAND, Tool
from amanda.core.unmatched import UnmatchedFilterWarning
from amanda.driver import registry
from amanda.drivers.onnxruntime import OnnxRuntimeDriver
from amanda.drivers.tensorflow import TensorFlowDriver
from amanda.drivers.torch import TorchDriver, backward_errors
from amanda.drivers.torch.builds import Builds
from amanda.drivers.torch_compile import CompiledFunctions

if TYPE_CHECKING:
    from amanda import distributed, research, toolkit, tools
    from amanda.core.program_points import points
    from amanda.reports.point_table import PointTable
    from amanda.reports.rank_report import report
    from amanda.reports.scope_description import ScopeDescription
    from amanda.tools.trace.tracing import trace
else:
    _LATE = {  # names that are imported when they are first asked for: many programs use none of them
        "PointTable": "amanda.reports.point_table",
        "ScopeDescription": "amanda.reports.scope_description",
        "points": "amanda.core.program_points",
        "report": "amanda.reports.rank_report",
        "trace": "amanda.tools.trace.tracing",
    }

    def __getattr__(name):
        if name in ("distributed", "research", "toolkit", "tools"):
            return importlib.import_module(f"amanda.{name}")
        if name not in _LATE:
            meant = "" if name.startswith("_") else did_you_mean(name, __all__, "amanda.{}")
            unknown = f"module 'amanda' has no attribute {name!r}{meant}"
            raise AttributeError(moved.message(f"amanda.{name}") or unknown, name=name)
        value = globals()[name] = getattr(importlib.import_module(_LATE[name]), name)
        return value


def _write_check() -> write_check.WriteCheck:
    from amanda.tools.hidden_writes import WriteCheck  # few programs use it

    return WriteCheck()


def _inplace_hint() -> str:
    from amanda.tools.inplace.hint import unrecorded

    return unrecorded()


other_project.warn()
write_check.use(_write_check)
backward_errors.use(_inplace_hint)
_core.set_log_sink(log_lines.write)
registry.register(TorchDriver(Builds(__path__), CompiledFunctions()))
registry.register(TensorFlowDriver())
registry.register(OnnxRuntimeDriver())

#: The folder in which CMake's find_package(amanda) finds this installation: an entry of CMAKE_PREFIX_PATH.
cmake_prefix_path = os.path.normpath(os.path.join(os.path.dirname(__file__), _build.CMAKE_PREFIX))

__all__ = [
    "ON_DEMAND",
    "Action",
    "CacheInfo",
    "CoverageReport",
    "Error",
    "Evidence",
    "OpContext",
    "Operator",
    "PointTable",
    "Run",
    "Schedule",
    "ScheduledScope",
    "Scope",
    "ScopeDescription",
    "StepTool",
    "Tool",
    "UnmatchedFilterWarning",
    "__version__",
    "apply",
    "cache_disabled",
    "cache_enabled",
    "cmake_prefix_path",
    "disabled",
    "distributed",
    "enabled",
    "is_cache_enabled",
    "is_enabled",
    "ops",
    "points",
    "report",
    "research",
    "root",
    "scheduled",
    "tool",
    "toolkit",
    "tools",
    "trace",
]
