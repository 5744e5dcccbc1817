"""The writes to each storage. Imports torch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from amanda.toolkit import Place
from amanda.toolkit.torch import StorageWeakRef

from .finding import Write

KEPT = 16  # of the last writes to a storage


class Site(NamedTuple):
    """An operator that writes to these inputs."""

    place: Place
    names: Sequence[str]
    by_optimizer: bool


class _Written(NamedTuple):
    """A write, as it is kept: there are many, and few are ever shown."""

    site: Site
    name: str
    place: int | None  # in a list
    before: int
    after: int
    view: tuple[int, ...] | None  # its shape, if it was none of the whole tensor
    shape: tuple[int, ...]  # of the whole tensor

    def shown(self) -> Write:
        name = self.name if self.place is None else f"{self.name}[{self.place}]"
        view = "" if self.view is None else f"a view of shape {self.view}"
        return Write(self.site.place, name, view, self.before, self.after, self.site.by_optimizer, self.shape)


class Writes:
    """Writes by the address of the storage. It keeps no tensor's memory, but the address: no other storage gets it."""

    def __init__(self) -> None:
        self._of: dict[int, tuple[StorageWeakRef, list[_Written]]] = {}
        self._grown = 1000

    def add(self, tensor: Any, site: Site, name: str, index: int | None, before: int) -> None:
        """Adds a write, if the version is no longer the one before it."""
        after = tensor._version
        if after == before:
            return
        try:
            storage = tensor.untyped_storage()
        except (NotImplementedError, RuntimeError):  # sparse, and wrappers
            return
        known = self._of.get(storage._cdata)
        if known is None:
            self._forget_dead()
            known = self._of[storage._cdata] = (StorageWeakRef(storage), [])
        base = tensor._base
        view = None if base is None else tuple(tensor.shape)
        known[1].append(
            _Written(site, name, index, before, after, view, tuple((tensor if base is None else base).shape))
        )
        if len(known[1]) > 2 * KEPT:
            del known[1][:-KEPT]

    def to(self, storage: int) -> list[Write]:
        """In order."""
        reference, found = self._of.get(storage, (None, []))
        return [] if reference is None or reference.expired() else [one.shown() for one in found[-KEPT:]]

    def alike(self, size: int, expected: int, version: int) -> list[list[Write]]:
        """For each tensor of that number of elements with this version now: the writes after the expected version."""
        living = (writes for reference, writes in list(self._of.values()) if not reference.expired())
        since = ([one for one in writes if one.after > expected] for writes in living)
        return [
            [one.shown() for one in writes]
            for writes in since
            if writes and (math.prod(writes[0].shape), writes[-1].after) == (size, version)
        ]

    def _forget_dead(self) -> None:
        if len(self._of) < self._grown:
            return
        self._of = {address: known for address, known in list(self._of.items()) if not known[0].expired()}
        self._grown = max(1000, 2 * len(self._of))


def versions(inputs: Sequence[Any]) -> list[int | None]:
    """The versions of the tensors among these, also in lists; None for those that have none."""
    return [version(one) for value in inputs for one in (value if isinstance(value, (list, tuple)) else (value,))]


def positions(names: Sequence[str], inputs: Sequence[Any]) -> Iterator[tuple[str, int | None, Any]]:
    """The same tensors, each with the name of its input, and its place in a list."""
    for name, value in zip(names, inputs, strict=False):
        if isinstance(value, (list, tuple)):
            yield from ((name, index, one) for index, one in enumerate(value))
        else:
            yield name, None, value


def version(value: Any) -> int | None:
    """None for what has none: no tensor, or one of inference mode."""
    try:
        return int(value._version)
    except (AttributeError, RuntimeError):
        return None
