"""Unread: what an operator was given and no tool can read. A NaN may come from there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from amanda.toolkit import locks
from amanda.toolkit.arrays import REASONS, Arrays, arrays_of

from .finding import flattened
from .ledger import At

FEW = 64  # makers that are kept before those of dead tensors are dropped
_WITHOUT_VALUES = {"meta", "symbolic", "unwritten", "freed"}


class Maker(NamedTuple):
    """The operator that made a tensor which cannot be read."""

    at: At
    was_given: Any  # a flag, where its tensors are, or False; true if the operator has read a value that is not finite


class Unread:
    """Inputs of one run that could not be read, in words, and whether an operator before has put some into them."""

    def __init__(self, inputs: Iterable[tuple[str, Any]], makers: Makers) -> None:
        self.texts: list[str] = []
        self.flags: list[Any] = []
        for name, value in inputs:
            for one, reason in unreadable([value]):
                maker = makers.of(one)
                made = f", made by {maker.at}" if maker is not None else ""
                self.texts.append(f"{name}, which could not be read ({REASONS[reason]}{made})")
                self.flags += [maker.was_given] if maker is not None and maker.was_given is not False else []

    def __str__(self) -> str:
        return " or ".join(dict.fromkeys(self.texts))


class Makers:
    """Which operators have made PyTorch's tensors that cannot be read, as long as these are alive. It keeps none of
    them."""

    def __init__(self) -> None:
        self._lock = locks.lock()
        self._known: dict[int, tuple[Any, Maker]] = {}  # with a weak reference; see `tensors.identity`
        self._next_purge = FEW

    def note(self, value: Any, maker: Maker) -> None:
        from . import tensors

        address, reference = tensors.identity(value)
        with self._lock:
            self._known[address] = reference, maker
            if len(self._known) >= self._next_purge:
                self._known = {key: one for key, one in self._known.items() if not one[0].expired()}
                self._next_purge = max(FEW, 2 * len(self._known))

    def of(self, value: Any) -> Maker | None:
        if not self._known:
            return None
        from . import tensors

        address, _ = tensors.identity(value)
        with self._lock:
            reference, maker = self._known.get(address, (None, None))
            return maker if reference is not None and not reference.expired() else None

    def clear(self) -> None:
        with self._lock:
            self._known.clear()


def unreadable(values: Any) -> Iterator[tuple[Any, str]]:
    """The arrays that have values which cannot be read, with a key of `REASONS`."""
    for value in flattened(values):
        arrays = arrays_of(value)
        reason = why(value, arrays) if arrays is not None else None
        if reason is not None and reason not in _WITHOUT_VALUES:
            yield value, reason


def why(value: Any, arrays: Arrays) -> str | None:
    with arrays.quietly():
        return arrays.why_unreadable(value)
