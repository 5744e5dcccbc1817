"""
Dynamic tensor rematerialization. Use it through `amanda.research`.
"""
from __future__ import annotations
import typing
import typing_extensions
__all__: list[str] = ['Rematerializer', 'Row', 'SavedTensor']
class Rematerializer:
    """
    What a tool does, and has done.
    """
    def __init__(self, budget: typing.SupportsInt | typing.SupportsIndex, heuristic: str, equal_costs: bool, seed: typing.SupportsInt | typing.SupportsIndex | None = None) -> None:
        """
        `seed`: of random costs, as a machine may have them that is busy.
        """
    def left_out(self) -> int:
        """
        How many operators of compiled functions are not run again.
        """
    def reset(self) -> None:
        ...
    def rows(self) -> list[Row]:
        ...
    def tool(self) -> typing_extensions.CapsuleType:
        """
        A tool that works for it.
        """
    @property
    def live(self) -> int:
        ...
    @property
    def peak(self) -> int:
        ...
class Row:
    """
    What happened to the results of one operator type in one module.
    """
    @property
    def evicted(self) -> int:
        ...
    @property
    def evicted_bytes(self) -> int:
        ...
    @property
    def kept(self) -> int:
        ...
    @property
    def kept_because(self) -> str:
        ...
    @property
    def kept_bytes(self) -> int:
        ...
    @property
    def module_path(self) -> str:
        ...
    @property
    def op(self) -> str:
        ...
    @property
    def recompute_ns(self) -> int:
        ...
    @property
    def recomputed(self) -> int:
        ...
class SavedTensor:
    """
    What autograd keeps in place of a tensor.
    """
