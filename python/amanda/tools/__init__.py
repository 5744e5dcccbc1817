"""Tools that ship with Amanda. Each is in a module of its own, with what belongs to it."""

from typing import TYPE_CHECKING

from amanda.toolkit import deferred

if TYPE_CHECKING:
    from amanda.tools.capture import Capture, Patch
    from amanda.tools.check import Check
    from amanda.tools.compiled_diff import CompiledDiff
    from amanda.tools.cupti_profiler import CuptiProfiler
    from amanda.tools.cuts import GradientCuts
    from amanda.tools.diff import CausalDiff, Recorder
    from amanda.tools.export_diff import ExportDiff
    from amanda.tools.flops import Flops
    from amanda.tools.gradients import GradientStatistics
    from amanda.tools.graph import GraphTracing
    from amanda.tools.histograms import ValueHistograms
    from amanda.tools.history import History
    from amanda.tools.hook_coverage import HookCoverage
    from amanda.tools.inplace import InplaceErrors
    from amanda.tools.mapping import MappingTool
    from amanda.tools.memory import PeakMemory
    from amanda.tools.nonfinite import NaNSentinel
    from amanda.tools.profile import Profile
    from amanda.tools.pruning import MagnitudePruning, VectorwisePruning
    from amanda.tools.quantization import DynamicQuantization, FakeQuantization, StaticQuantization
    from amanda.tools.rewriting import SubgraphRewriting
    from amanda.tools.statistics import OpStatistics
    from amanda.tools.trace import Trace
else:  # a program uses few of them
    __getattr__ = deferred.imports(
        __name__,
        capture=("Capture", "Patch"),
        check=("Check",),
        compiled_diff=("CompiledDiff",),
        cupti_profiler=("CuptiProfiler",),
        cuts=("GradientCuts",),
        diff=("CausalDiff", "Recorder"),
        export_diff=("ExportDiff",),
        flops=("Flops",),
        gradients=("GradientStatistics",),
        graph=("GraphTracing",),
        histograms=("ValueHistograms",),
        history=("History",),
        hook_coverage=("HookCoverage",),
        inplace=("InplaceErrors",),
        mapping=("MappingTool",),
        memory=("PeakMemory",),
        nonfinite=("NaNSentinel",),
        profile=("Profile",),
        pruning=("MagnitudePruning", "VectorwisePruning"),
        quantization=("DynamicQuantization", "FakeQuantization", "StaticQuantization"),
        rewriting=("SubgraphRewriting",),
        statistics=("OpStatistics",),
        trace=("Trace",),
    )

__all__ = [
    "Capture",
    "CausalDiff",
    "Check",
    "CompiledDiff",
    "CuptiProfiler",
    "DynamicQuantization",
    "ExportDiff",
    "FakeQuantization",
    "Flops",
    "GradientCuts",
    "GradientStatistics",
    "GraphTracing",
    "History",
    "HookCoverage",
    "InplaceErrors",
    "MagnitudePruning",
    "MappingTool",
    "NaNSentinel",
    "OpStatistics",
    "Patch",
    "PeakMemory",
    "Profile",
    "Recorder",
    "StaticQuantization",
    "SubgraphRewriting",
    "Trace",
    "ValueHistograms",
    "VectorwisePruning",
]
