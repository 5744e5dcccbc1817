"""Elements: which elements of a tensor faults hit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from amanda import Error
from amanda.toolkit.arrays import Arrays

Index = tuple[int, ...]


class Elements:
    """Elements at given indices, a number of random ones, or each with a probability.

    Raises:
        ValueError: more than one of the three is given, or one is out of range.
    """

    def __init__(self, index: Index | list[Index] | None, count: int | None, rate: float | None) -> None:
        if sum(given is not None for given in (index, count, rate)) > 1:
            raise ValueError(
                f"[error_injection] give one of index=, count= and rate=; got {index!r}, {count!r}, {rate!r}"
            )
        if rate is not None and not (isinstance(rate, (int, float)) and 0 <= rate <= 1):
            raise ValueError(f"[error_injection] rate= is the probability of a fault per element, 0 to 1; got {rate!r}")
        if count is not None and not (isinstance(count, int) and count > 0):
            raise ValueError(f"[error_injection] count= is how many elements to hit, 1 or more; got {count!r}")
        self._indices = None if index is None else _indices(index)
        self._count, self._rate = 1 if count is None else count, rate

    def draw(self, shape: Sequence[int], arrays: Arrays, generator: Any, where: str) -> list[int]:
        """The elements that are hit in an array of this shape, as positions in the flattened array."""
        if self._indices is not None:
            return [_flat(index, shape, where) for index in self._indices]
        size = math.prod(shape)
        count = min(self._count, size)
        if self._rate is not None:
            # As many as independent draws would give; the uniform numbers of float32 do not resolve small rates.
            count = arrays.binomial(generator, size, self._rate)
        return _distinct(count, size, arrays, generator)


def _distinct(count: int, size: int, arrays: Arrays, generator: Any) -> list[int]:
    """`count` different numbers below `size`; every choice is equally likely."""
    if 4 * count > size:
        return arrays.distinct(generator, size, count)
    chosen: dict[int, None] = {}
    while len(chosen) < count:
        chosen |= dict.fromkeys(arrays.integers(generator, size, count - len(chosen)))
    return [*chosen]


def _indices(index: Index | list[Index]) -> list[Index]:
    several = index if isinstance(index, list) else [index]
    for one in several:
        if not isinstance(one, tuple) or not all(isinstance(i, int) for i in one):
            raise ValueError(f"[error_injection] index= is a tuple of integers, or a list of such; got {index!r}")
    return several


def _flat(index: Index, shape: Sequence[int], where: str) -> int:
    if len(index) != len(shape) or not all(-size <= i < size for i, size in zip(index, shape, strict=True)):
        raise Error(f"[error_injection] {where} has the shape {tuple(shape)}, and no element {index}")
    flat = 0
    for i, size in zip(index, shape, strict=True):
        flat = flat * size + i % size
    return flat


def index_of(flat: int, shape: Sequence[int]) -> Index:
    """The index of an element, given its position in the flattened tensor."""
    index: list[int] = []
    for size in reversed(shape):
        flat, i = divmod(flat, size)
        index.insert(0, i)
    return tuple(index)
