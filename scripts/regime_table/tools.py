"""How each public tool is made and run, and which are left out, and why."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import amanda
import amanda.research
import amanda.tools

from regime_table.program import Program


def _train(tool: Any, program: Program) -> None:
    program.train(program.run(program.x))


def _twice(tool: Any, program: Program) -> None:
    _train(tool, program)  # the first run is traced
    _train(tool, program)


def _infer(tool: Any, program: Program) -> None:
    import torch

    with torch.no_grad():
        program.run(program.x)


def _calibrate(tool: Any, program: Program) -> None:
    _infer(tool, program)
    tool.convert()
    _infer(tool, program)


def _extract(tool: Any, program: Program) -> None:
    tool.extract(program.run, program.x)


class Made(NamedTuple):
    """How a tool is made, of its module, a program and a folder, and how it is run."""

    module: str
    make: Callable[[Any, Program, Path], amanda.Tool]
    run: Callable[[Any, Program], None] = _train
    network: str = "net"


def _fused(conv: Any, relu: Any) -> Any:
    import torch

    return torch.nn.functional.conv2d(conv.input, conv.weight, conv.bias).clamp(min=0)


TOOLS = {
    "ActivationPruning": Made("research", lambda tools, *_: tools.ActivationPruning(0.1)),
    "Capture": Made("tools.capture", lambda tools, *_: tools.Capture()),
    "CascadePruning": Made("research", lambda tools, *_: tools.CascadePruning(tokens=0.5)),
    "CausalDiff": Made("tools.diff", lambda tools, _, record: tools.CausalDiff(record, progress=False)),
    "ChannelPruning": Made("research", lambda tools, *_: tools.ChannelPruning()),
    "Check": Made("tools.check", lambda tools, *_: tools.Check()),
    "CuptiProfiler": Made("tools.cupti_profiler", lambda tools, *_: tools.CuptiProfiler()),
    "DynamicQuantization": Made("tools.quantization", lambda tools, *_: tools.DynamicQuantization(), _infer),
    "EffectivePath": Made("research", lambda tools, *_: tools.EffectivePath(), _extract, "scores"),
    "ErrorInjection": Made("research", lambda tools, *_: tools.ErrorInjection(tools.BitFlip())),
    "FakeQuantization": Made("tools.quantization", lambda tools, *_: tools.FakeQuantization()),
    "Flops": Made("tools.flops", lambda tools, *_: tools.Flops()),
    "GradientCuts": Made("tools.cuts", lambda tools, *_: tools.GradientCuts()),
    "GradientStatistics": Made("tools.gradients", lambda tools, *_: tools.GradientStatistics()),
    "GraphTracing": Made("tools.graph", lambda tools, *_: tools.GraphTracing()),
    "HeadPruning": Made("research", lambda tools, *_: tools.HeadPruning({0: [0]})),
    "History": Made("tools.history", lambda tools, *_: tools.History()),
    "HookCoverage": Made("tools.hook_coverage", lambda tools, program, _: tools.HookCoverage(program.model)),
    "InplaceErrors": Made("tools.inplace", lambda tools, *_: tools.InplaceErrors()),
    "LearnedStepQuantization": Made("research", lambda tools, *_: tools.LearnedStepQuantization()),
    "MagnitudePruning": Made("tools.pruning", lambda tools, *_: tools.MagnitudePruning(0.5)),
    "MappingTool": Made("tools.mapping", lambda tools, *_: tools.vocabulary()),
    "NaNSentinel": Made("tools.nonfinite", lambda tools, *_: tools.NaNSentinel()),
    "OpStatistics": Made("tools.statistics", lambda tools, *_: tools.OpStatistics()),
    "Patch": Made("tools.capture", lambda tools, *_: tools.Patch({"*:?oftmax": 0.0})),
    "PeakMemory": Made("tools.memory", lambda tools, *_: tools.PeakMemory()),
    "Profile": Made("tools.profile", lambda tools, *_: tools.Profile(backward=True)),
    "Recorder": Made("tools.diff", lambda tools, _, folder: tools.Recorder(folder)),
    "Rematerialization": Made("research", lambda tools, *_: tools.Rematerialization(10**9)),
    "StaticQuantization": Made("tools.quantization", lambda tools, *_: tools.StaticQuantization(), _calibrate),
    "SubgraphRewriting": Made(
        "tools.rewriting", lambda tools, *_: tools.SubgraphRewriting(["conv2d", "relu"], _fused), _twice
    ),
    "TilewisePruning": Made("research", lambda tools, *_: tools.TilewisePruning()),
    "Trace": Made("tools.trace", lambda tools, *_: tools.Trace("*: output.sum()")),
    "ValueHistograms": Made("tools.histograms", lambda tools, *_: tools.ValueHistograms()),
    "VectorwisePruning": Made("tools.pruning", lambda tools, *_: tools.VectorwisePruning()),
}

EXCEPTIONS = {
    "AskedGradients": "a part of Check",
    "AttentionPruning": "a base class",
    "CompiledDiff": "it looks at the code of compiled functions, and at no operators",
    "CompiledFlops": "a part of Flops",
    "ComputedInputs": "a part of Check",
    "DeadUnits": "a part of History",
    "ExportDiff": "it needs a file that was exported of the program; its page says where it works",
    "PostTraining": "a base class",
    "Quantization": "a base class",
    "SparsitySchedule": "a number for tools that prune; it looks at nothing",
    "Watching": "a base class",
    "WeightPruning": "a base class",
    "WriteRecorder": "a base class",
}


def make(name: str, program: Program, folder: Path) -> Any:
    """`folder`: of a record.

    Raises:
        ModuleNotFoundError: its framework is not installed.
    """
    made = TOOLS[name]
    return made.make(importlib.import_module(f"amanda.{made.module}"), program, folder)


class Dependent(amanda.Tool):
    """A tool that depends on a tool that does nothing by itself."""

    def __init__(self, tool: amanda.Tool) -> None:
        super().__init__()
        self.depends_on(tool)
        self.add_inst_for_op(lambda context: None)
        self.add_inst_for_op(lambda context: None, backward=True)


def public_tools() -> set[str]:
    """The names of all classes of tools in public modules of amanda.tools and amanda.research."""
    for module in (
        *pkgutil.walk_packages(amanda.tools.__path__, "amanda.tools."),
        *pkgutil.walk_packages(amanda.research.__path__, "amanda.research."),
    ):
        if not any(part.startswith("_") for part in module.name.split(".")):
            importlib.import_module(module.name)
    return {
        kind.__name__
        for kind in _subclasses(amanda.Tool)
        if kind.__module__.startswith(("amanda.tools.", "amanda.research."))
        and not any(part.startswith("_") for part in (*kind.__module__.split("."), kind.__name__))
    }


def _subclasses(kind: type) -> Iterator[type]:
    for one in kind.__subclasses__():
        yield one
        yield from _subclasses(one)
