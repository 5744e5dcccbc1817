"""Operands: the values of one side of an operator, as a routine gets them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Values = dict[str, Any]


class Operands:
    """One side of a node: its names one after another, and their positions."""

    def __init__(self, given: Sequence[str], arranged: tuple[Any, ...]) -> None:
        self._counts = [len(each) if isinstance(each, tuple) else None for each in arranged]
        self.positions = [i for i, count in enumerate(self._counts) for _ in range(1 if count is None else count)]
        self.names = [*given, *[""] * (len(self.positions) - len(given))]
        self.is_plain = all(count is None for count in self._counts)

    def chosen(self, chooses: Callable[[int], bool]) -> dict[int, str]:
        """The names at the chosen positions, by index."""
        found = zip(self.names, self.positions, strict=True)
        return {i: name for i, (name, position) in enumerate(found) if name and chooses(position)}

    def reader(self, names: dict[int, str]) -> Callable[[Values], Sequence[Any]]:
        """Reads these values, by position; None in place of others."""
        nothing: list[Any] = [None] * len(self.names)
        if not names:
            without = tuple(self.arranged(nothing))
            return lambda values: without
        if self.is_plain and len(names) == len(self.names):
            if len(names) > 1:
                return operator.itemgetter(*names.values())
            (name,) = names.values()
            return lambda values: (values[name],)

        def read(values: Values) -> Sequence[Any]:
            found = nothing.copy()
            for i, name in names.items():
                found[i] = values[name]
            return self.arranged(found)

        return read

    def arranged(self, values: Sequence[Any]) -> Sequence[Any]:
        """The values by position; those of a variadic position in a list."""
        if self.is_plain:
            return values
        rest = iter(values)
        return [next(rest) if count is None else [next(rest) for _ in range(count)] for count in self._counts]

    def flat(self, arranged: Sequence[Any]) -> Sequence[Any]:
        """One after another, of values by position. A list at a position for one value is a sequence."""
        if self.is_plain:
            return arranged
        found: list[Any] = []
        for count, value in zip(self._counts, arranged, strict=False):
            found += [value] if count is None else value
        return found


def locked(value: Any) -> Any:
    """The same elements, to which routines can't write."""
    if not isinstance(value, np.ndarray):
        return value
    view = value.view()
    view.setflags(write=False)
    return view
