"""
The tools that are written in C++. Use them through `amanda.tools`.
"""
from __future__ import annotations
import collections.abc
import typing_extensions
__all__: list[str] = ['FlopCounts', 'FlopRow', 'counting_tool', 'editing_tool', 'make_flops']
class FlopCounts:
    """
    What a Flops tool has counted so far.
    """
    def by_module(self) -> dict[str, int]:
        ...
    def by_operator(self) -> dict[str, int]:
        ...
    def reset(self) -> None:
        ...
    def rows(self) -> list[FlopRow]:
        ...
    def total(self) -> int:
        ...
    def uncounted(self) -> dict[str, int]:
        ...
class FlopRow:
    """
    All runs of one operator type in one module.
    """
    @property
    def backward(self) -> bool:
        ...
    @property
    def flops(self) -> int:
        ...
    @property
    def module_path(self) -> str:
        ...
    @property
    def op(self) -> str:
        ...
    @property
    def runs(self) -> int:
        ...
def counting_tool(backward: bool = False, ops: collections.abc.Sequence[str] = [], looks: bool = False) -> typing_extensions.CapsuleType:
    """
    For benchmarks: a tool with an empty routine before every forward operator, or backward operators as well; of these types, if some are named. With looks=True the routine declares that it edits nothing.
    """
def editing_tool(ops: collections.abc.Sequence[str]) -> typing_extensions.CapsuleType:
    """
    For benchmarks: a tool with a routine after each forward operator of these types that gets its results, may change them, and does not.
    """
def make_flops(uncounted: bool, cpu_attention: bool) -> tuple[typing_extensions.CapsuleType, FlopCounts]:
    """
    The tool, and what it counts.
    """
