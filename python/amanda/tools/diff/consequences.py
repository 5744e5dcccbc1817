"""Consequences: tensors that differ because of something that is reported elsewhere, and that could not be replaced."""

from __future__ import annotations

import collections
from collections.abc import Hashable, Iterable

from .texts import is_telling, without_hash


class Consequences:
    """Tensors are known by their contents. Autograd adds gradients without an operator: a sum is known by its shape, if a
    gradient of that shape is a consequence."""

    def __init__(self) -> None:
        self._sources: dict[str, Hashable] = {}
        self._gradients: dict[str, Hashable] = {}  # by dtype and shape
        self._of_leaves: dict[str, Hashable] = {}
        self.readers: collections.Counter[Hashable] = (
            collections.Counter()
        )  # runs of operators that read one, by source

    def __bool__(self) -> bool:
        return bool(self._sources)

    def add(self, tensors: Iterable[str], source: Hashable, *, gradients: bool = False) -> None:
        for tensor in filter(is_telling, tensors):
            self._sources[tensor] = source
            if gradients:
                self._gradients[without_hash(tensor)] = source

    def accumulate(self, gradient: str) -> None:
        """It is added to that of a leaf, which an optimizer reads."""
        source = self.source(gradient, backward=True)
        if source is not None:
            self._sources[gradient] = self._of_leaves[without_hash(gradient)] = source

    def source(self, tensor: str, *, backward: bool) -> Hashable | None:
        """The cause that a tensor follows from. `backward`: a backward operator reads the tensor."""
        sums = self._gradients if backward else self._of_leaves
        return self._sources.get(tensor) or sums.get(without_hash(tensor))
