"""Change: an input of an operator that is another one than in the reference."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

from . import texts
from .record import Station

_NAMES = 6  # that are listed


@dataclasses.dataclass(eq=False)
class Change:
    """An input that is another one than in the reference."""

    name: str
    parameters: tuple[str, ...]
    theirs: str
    ours: str

    @functools.cached_property
    def pairs(self) -> list[tuple[str, str]]:
        """The tensors that differ, reference's first; [] if one side has another number of them."""
        return [pair for pair in self._all if pair[0] != pair[1]]

    @property
    def is_number(self) -> bool:
        return bool(self.pairs) and all(texts.number_in(text) for pair in self.pairs for text in pair)

    @property
    def dtypes(self) -> set[str]:
        """The dtypes of both sides, where they differ."""
        pairs = [] if self.is_number else [{texts.dtype_in(one), texts.dtype_in(other)} for one, other in self.pairs]
        return set().union(*(pair for pair in pairs if len(pair) > 1))

    @property
    def comparable(self) -> list[tuple[str, str]]:
        """The pairs without those of two dtypes: these have different bits anyway, and their values were compared where
        they were made."""
        return [(one, other) for one, other in self.pairs if texts.dtype_in(one) == texts.dtype_in(other)]

    @property
    def changed_parameters(self) -> list[str]:
        if len(self._all) != len(self.parameters):
            return list(filter(None, self.parameters))
        both = zip(self._all, self.parameters, strict=True)
        return [name for (one, other), name in both if name and one != other]

    def __str__(self) -> str:
        if self.pairs and not self.is_number:
            return f"{self.name} ({_listed(self.changed_parameters)})" if self.changed_parameters else self.name
        return f"{self.name}: {_short(self.theirs)} -> {_short(self.ours)}"

    @property
    def _all(self) -> list[tuple[str, str]]:
        theirs, ours = texts.tensors_in(self.theirs), texts.tensors_in(self.ours)
        pairs = list(zip(theirs, ours, strict=True)) if len(theirs) == len(ours) else []
        is_one_a_number = any(
            (texts.number_in(one) is None) != (texts.number_in(other) is None) for one, other in pairs
        )
        return [] if is_one_a_number else pairs


def changes_of(station: Station, theirs: Sequence[str], ours: Sequence[str]) -> list[Change]:
    if len(theirs) != len(ours):
        return []
    names = station.names or [f"grad_outputs[{i}]" for i in range(len(ours))]
    parameters = station.parameters or [()] * len(ours)
    return [
        Change(name, known, one, other)
        for name, known, one, other in zip(names, parameters, theirs, ours, strict=True)
        if one != other
    ]


def _short(text: str) -> str:
    """The text without hashes, which do not help a reader."""
    for tensor in texts.tensors_in(text):
        text = text.replace(tensor, texts.number_in(tensor) or texts.without_hash(tensor))
    return text


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMES} more" if len(names) > _NAMES else ""
    return ", ".join(names[:_NAMES]) + more
