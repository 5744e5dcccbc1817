"""The operators that run taps in code that torch.compile has compiled."""
from __future__ import annotations
import collections.abc
import torch
import typing
__all__: list[str] = ['Autocast', 'Operator', 'Slot', 'Table']
class Autocast:
    """A context in which autocast is as a node has noted it."""
    def __enter__(self) -> None: ...
    def __exit__(self, *args) -> None: ...
    def __init__(self, state: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex]) -> None: ...
class Operator:
    """An operator of a compiled program while it runs."""
    def __init__(self, backend: str, type: typing.SupportsInt | typing.SupportsIndex, id: typing.SupportsInt | typing.SupportsIndex, name: str, overload: str, *, module_path: str = '', source: str = '', refuse: typing.Any = None, forward: Operator | None = None) -> None:
        """`name`, `overload`: what it calls, "aten::linear" and ""; for a backward operator (with `forward=`), what it is the derivative of. `refuse(point, position)`: as of OpSite."""
class Slot:
    """What a node of a compiled graph does: its taps, and which of its tensors is which."""
    def __init__(self, operator: Operator, tap_ids: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex], inputs: list, outputs: list, num_tensors: typing.SupportsInt | typing.SupportsIndex, forms: collections.abc.Sequence[tuple[typing.Any, collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex | None]]] = []) -> None:
        """`inputs`, `outputs`: for each position None, ("tensor", number), ("number", number), ("constant", value), or a list of these. `forms`: for each tensor the dtype and the sizes that a replacement must give it; a size of None is left open, and a dtype of None says nothing."""
class Table:
    """The slots of one instance of a graph under one toolset."""
    def __init__(self, slots: collections.abc.Sequence[Slot]) -> None: ...
    @property
    def number(self) -> int:
        """Its value: never used again."""
    @property
    def tensor(self) -> torch.Tensor:
        """For the graph's placeholder. It keeps the table alive."""
