"""Public names that have moved, and tools that are asked of `amanda`: the error has the name that there is."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from types import ModuleType

#: Modules by their old names, and the statement that imports what they had.
MODULES = {
    "amanda.coverage": "from amanda import CoverageReport",
    "amanda.evidence": "from amanda import Evidence",
    "amanda.op_context": "from amanda import OpContext",
    "amanda.program_points": "from amanda import points",
    "amanda.rank_report": "from amanda import report",
    "amanda.roots": "from amanda import root",
    "amanda.schedule": "from amanda import Schedule",
    "amanda.scheduled_scope": "from amanda import scheduled",
    "amanda.scope": "from amanda import Scope, apply",
    "amanda.step_tool": "from amanda import StepTool",
    "amanda.switches": "from amanda import disabled, enabled",
    "amanda.unmatched": "from amanda import UnmatchedFilterWarning",
    "amanda.run": "from amanda import Run",
    "amanda.tools.coverage": "from amanda.tools.hook_coverage import HookCoverage",
    "amanda.tools.effective_path": "import amanda.research.effective_path",
    "amanda.tools.error_injection": "import amanda.research.error_injection",
    "amanda.tools.rematerialization": "import amanda.research.rematerialization",
    "amanda.tools.pruning.activation": "import amanda.research.pruning.activation",
    "amanda.tools.pruning.attention": "import amanda.research.pruning.attention",
    "amanda.tools.pruning.cascade": "import amanda.research.pruning.cascade",
    "amanda.tools.pruning.channel": "import amanda.research.pruning.channel",
    "amanda.tools.pruning.heads": "import amanda.research.pruning.heads",
    "amanda.tools.pruning.passes": "import amanda.research.pruning.passes",
    "amanda.tools.pruning.tilewise": "import amanda.research.pruning.tilewise",
    "amanda.tools.quantization.learned_step": "import amanda.research.learned_step",
}
#: Names in modules that stay: the module, where they are now, and they.
NAMES = [
    (
        "amanda.tools",
        "amanda.research",
        (
            *("ActivationPruning", "AttentionPruning", "CascadePruning", "ChannelPruning", "HeadPruning"),
            *("TilewisePruning", "LearnedStepQuantization", "Rematerialization", "EffectivePath", "Path"),
            *("BitFlip", "Campaign", "ErrorInjection", "Fault", "RandomValue", "StuckAt"),
        ),
    ),
    (
        "amanda.tools.pruning",
        "amanda.research.pruning",
        (
            *("RECTIFIERS", "ActivationPruning", "ActivationRow", "ChannelPruning", "ChannelRow", "TilewisePruning"),
            *("AttentionPruning", "CascadePruning", "HeadPruning", "Kept", "Layer", "LayerRow"),
        ),
    ),
    ("amanda.tools.quantization", "amanda.research", ("LearnedStepQuantization",)),
]
_MESSAGES = {old: f"{old} moved: {statement}" for old, statement in MODULES.items()} | {
    f"{old}.{name}": f"{name} moved: from {new} import {name}" for old, new, names in NAMES for name in names
}


def message(old: str) -> str | None:
    """The new name, as a sentence; or where a tool is that is asked of `amanda`. None if `old` is neither."""
    if text := _MESSAGES.get(old):
        return text
    package, _, name = old.rpartition(".")
    return _place(name) if package == "amanda" and name[:1].isupper() else None


def _place(tool: str) -> str | None:
    for package in ("amanda.tools", "amanda.research"):
        if tool in importlib.import_module(package).__all__:
            return f"{tool} is in {package}: from {package} import {tool}"
    return None


class _Finder:
    """The last entry of `sys.meta_path`: only what is not found is asked of it.

    `from package import name` asks, too, before it fails.
    """

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> None:
        if text := message(name):
            raise ImportError(text, name=name)


sys.meta_path.append(_Finder)
