"""The tools that are written in C++. Use them through `amanda.tools`."""
from __future__ import annotations
import collections.abc
import typing
import typing_extensions
__all__: list[str] = ['FlopCounts', 'FlopRow', 'ProfileRecorder', 'count_flops', 'counting_tool', 'editing_tool', 'flop_operators', 'is_counting_flops', 'make_flops']
class FlopCounts:
    """What a Flops tool has counted so far."""
    def by_module(self) -> dict[str, int]: ...
    def by_operator(self) -> dict[str, int]: ...
    def reset(self) -> None: ...
    def rows(self) -> list[FlopRow]: ...
    def total(self) -> int: ...
    def uncounted(self) -> dict[str, int]: ...
    def uncounted_products(self) -> dict[str, int]: ...
class FlopRow:
    """All runs of one operator type in one module."""
    @property
    def backward(self) -> bool: ...
    @property
    def flops(self) -> int: ...
    @property
    def module_path(self) -> str: ...
    @property
    def op(self) -> str: ...
    @property
    def runs(self) -> int: ...
class ProfileRecorder:
    """What a Profile has measured."""
    ALONE: typing.ClassVar[int] = -1
    @staticmethod
    def measured() -> tuple[int, int, int]:
        """Start, duration and `finished_before`, of the calling thread's last run."""
    @staticmethod
    def start() -> typing_extensions.CapsuleType:
        """A routine for `_core.NativeRoutine`, before an operator."""
    def __init__(self, max_events: typing.SupportsInt | typing.SupportsIndex, skip: typing.SupportsInt | typing.SupportsIndex) -> None: ...
    def add(self, place: typing.SupportsInt | typing.SupportsIndex, start_ns: typing.SupportsInt | typing.SupportsIndex, duration_ns: typing.SupportsInt | typing.SupportsIndex, finished_before_ns: typing.SupportsInt | typing.SupportsIndex, output_bytes: typing.SupportsInt | typing.SupportsIndex) -> None:
        """Counts a run, on a thread that is known."""
    def dropped(self) -> int: ...
    def knows_thread(self) -> bool: ...
    def left_out(self) -> int: ...
    def name_thread(self, number: typing.SupportsInt | typing.SupportsIndex, name: str) -> None:
        """Of the calling thread."""
    def reset(self) -> None: ...
    def rows(self) -> list[tuple[int, int, int, list[tuple[int, int]], int]]:
        """Place, count, total, histogram and output bytes, in the order of the first runs."""
    def start_nested(self) -> typing_extensions.CapsuleType:
        """The same where measured operators run inside others: rows then exclude the inner ones."""
    def stop(self, place: typing.SupportsInt | typing.SupportsIndex, output_bytes: typing_extensions.CapsuleType) -> typing_extensions.CapsuleType:
        """The routine after it. Where it declines, `add` what it has `measured`."""
    def trace(self) -> tuple[list[tuple[int, int, int, int, int]], dict[int, str], int]:
        """The kept runs (place, thread, start, duration, output bytes), the threads, and how many dropped."""
def count_flops(kernel: str, module_path: str, flops: typing.SupportsInt | typing.SupportsIndex) -> None:
    """Counts what a replacement runs, in all Flops tools that are open on this thread."""
def counting_tool(backward: bool = False, ops: collections.abc.Sequence[str] = [], looks: bool = False) -> typing_extensions.CapsuleType:
    """For benchmarks: a tool with an empty routine before every forward operator, or backward operators as well; of these types, if some are named. With looks=True the routine declares that it edits nothing and calls no operator."""
def editing_tool(ops: collections.abc.Sequence[str]) -> typing_extensions.CapsuleType:
    """For benchmarks: a tool with a routine after each forward operator of these types that gets its results, may change them, and does not."""
def flop_operators() -> list[str]:
    """The operators that Flops counts, or lists as products that are not counted."""
def is_counting_flops() -> bool:
    """Is a Flops tool open on this thread?"""
def make_flops(uncounted: bool, cpu_attention: bool, operators: collections.abc.Sequence[tuple[str, str, str, str, str]] = []) -> tuple[typing_extensions.CapsuleType, FlopCounts, collections.abc.Callable]:
    """The tool, what it counts, and a function that narrows it, which the tool must outlive. `operators`: of graphs, as (full name, formula, name of the input, name of the weight, the weight's layout)."""
