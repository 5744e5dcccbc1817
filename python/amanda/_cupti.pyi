"""
GPU kernels, times and bytes per operator. Use it through `amanda.tools.cupti_profiler`.
"""
from __future__ import annotations
import collections.abc
import typing
import typing_extensions
__all__: list[str] = ['ActivityEvent', 'KernelProfile', 'KernelTotals', 'Node', 'ProfiledOperator', 'RunEvent', 'RunMeasures', 'make_profiler']
class ActivityEvent:
    """
    One kernel, copy or memset; times are those of time.monotonic_ns.
    """
    @property
    def bytes(self) -> int:
        ...
    @property
    def correlation_id(self) -> int:
        ...
    @property
    def device(self) -> int:
        ...
    @property
    def end_ns(self) -> int:
        ...
    @property
    def kind(self) -> str:
        ...
    @property
    def launch(self) -> tuple[int, int] | None:
        """
        Start and end of the call that caused it; None: not known.
        """
    @property
    def name(self) -> str:
        ...
    @property
    def run(self) -> int | None:
        """
        The operator's; None: not known.
        """
    @property
    def start_ns(self) -> int:
        ...
    @property
    def stream(self) -> int:
        ...
class KernelProfile:
    """
    What a CuptiProfiler has measured.
    """
    def activities(self) -> list[ActivityEvent]:
        ...
    def kernels(self) -> list[KernelTotals]:
        ...
    def nodes(self) -> list[Node]:
        ...
    def notes(self) -> list[str]:
        ...
    def operators(self) -> list[ProfiledOperator]:
        ...
    def reset(self) -> None:
        ...
    def runs(self) -> list[RunEvent]:
        ...
    @property
    def gpu_status(self) -> str:
        ...
    @property
    def library(self) -> str:
        ...
class KernelTotals:
    """
    All activities of one name in one node.
    """
    @property
    def bytes(self) -> int:
        ...
    @property
    def count(self) -> int:
        ...
    @property
    def kind(self) -> str:
        ...
    @property
    def longest_ns(self) -> int:
        ...
    @property
    def name(self) -> str:
        ...
    @property
    def node(self) -> int:
        ...
    @property
    def shortest_ns(self) -> int:
        ...
    @property
    def total_ns(self) -> int:
        ...
class Node:
    """
    An operator inside the operators above it; node 0 stands for none.
    """
    @property
    def calls(self) -> int:
        ...
    @property
    def failed(self) -> int:
        ...
    @property
    def index(self) -> int:
        ...
    @property
    def op(self) -> int:
        ...
    @property
    def parent(self) -> int:
        ...
    @property
    def phase(self) -> str:
        ...
    @property
    def sum(self) -> RunMeasures:
        ...
class ProfiledOperator:
    """
    One place in the program, as analysis found it.
    """
    @property
    def backward_op_id(self) -> int:
        ...
    @property
    def forward_name(self) -> str:
        ...
    @property
    def module_path(self) -> str:
        ...
    @property
    def name(self) -> str:
        ...
    @property
    def op_id(self) -> int:
        ...
    @property
    def source(self) -> str:
        ...
class RunEvent:
    """
    One run of an operator; times are those of time.monotonic_ns.
    """
    @property
    def end_ns(self) -> int:
        ...
    @property
    def measures(self) -> RunMeasures:
        ...
    @property
    def node(self) -> int:
        ...
    @property
    def run(self) -> int:
        ...
    @property
    def start_ns(self) -> int:
        ...
    @property
    def thread(self) -> int:
        ...
class RunMeasures:
    """
    Nanoseconds and bytes on the host, of one run or of many.
    """
    @property
    def allocated_bytes(self) -> int:
        ...
    @property
    def device_allocated_bytes(self) -> int:
        ...
    @property
    def device_freed_bytes(self) -> int:
        ...
    @property
    def exclusive_ns(self) -> int:
        ...
    @property
    def freed_bytes(self) -> int:
        ...
    @property
    def inclusive_ns(self) -> int:
        ...
    @property
    def operand_bytes(self) -> int:
        ...
def make_profiler(gpu: bool, backward: bool, nested: bool, operand_bytes: bool, ops: collections.abc.Sequence[str] | None, max_events: typing.SupportsInt | typing.SupportsIndex, candidates: collections.abc.Sequence[str], probe: typing.Any) -> tuple[typing_extensions.CapsuleType, KernelProfile]:
    """
    The tool, and what it measures.
    """
