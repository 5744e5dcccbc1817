"""Trails: how the values came that are not finite, for the tensors and gradients that have some."""

from __future__ import annotations

import collections
from collections.abc import Iterator
from typing import Any, NamedTuple

from amanda.toolkit import locks
from amanda.toolkit.schemas import MOVES_GRADIENTS

from .links import Trail

FEW = 64  # storages that are kept before those of dead tensors are dropped
MOST_REGIONS = 8  # of one storage
MOST_EDGES = 1024


class _Region(NamedTuple):
    """A part of a storage, in bytes, that an operator has written."""

    start: int
    stop: int
    trail: Trail


class Trails:
    """By memory, as long as it is alive, and by edge of the backward graph, where autograd adds gradients up. It keeps
    no tensor and no graph."""

    def __init__(self) -> None:
        self._lock = locks.lock()
        self._of: dict[int, tuple[Any, list[_Region]]] = {}  # with a weak reference to the storage
        self._next_purge = FEW
        self._edges: collections.OrderedDict[tuple[Any, ...], Trail] = collections.OrderedDict()

    def note(self, tensor: Any, trail: Trail) -> None:
        """`tensor`: what an operator has just written."""
        from amanda.toolkit.torch import StorageWeakRef

        storage = _storage(tensor)
        if storage is None:
            return
        start, stop = _extent(tensor)
        with self._lock:
            reference, regions = self._of.get(storage._cdata, (None, []))
            if reference is None or reference.expired():
                reference, regions = StorageWeakRef(storage), []
                self._purge()
            kept = [one for one in regions if not (start <= one.start and one.stop <= stop)]
            self._of[storage._cdata] = reference, [_Region(start, stop, trail), *kept[: MOST_REGIONS - 1]]

    def of(self, tensor: Any) -> Trail | None:
        """That of the latest operator which has written there. The tensor must have such a value: its finite ones are not
        followed."""
        storage = _storage(tensor) if self._of else None
        if storage is None:
            return None
        start, stop = _extent(tensor)
        with self._lock:
            reference, regions = self._of.get(storage._cdata, (None, []))
            if reference is None or reference.expired():
                return None
            return next((one.trail for one in regions if one.start < stop and start < one.stop), None)

    def note_edge(self, node: Any, position: int, trail: Trail) -> None:
        """A gradient that this node gives to the next one. If there are several, one that belongs to a finding is kept."""
        following = getattr(node, "next_functions", ())
        if position >= len(following):
            return
        with self._lock:
            for key in _edges(*following[position]):
                known = self._edges.get(key)
                if known is None or known.found is None or trail.found is not None:
                    self._edges[key] = trail
                self._edges.move_to_end(key)
            while len(self._edges) > MOST_EDGES:
                self._edges.popitem(last=False)

    def of_edge(self, node: Any, position: int) -> Trail | None:
        """That of a gradient which this node was given."""
        if not self._edges:
            return None
        with self._lock:
            return self._edges.get(_key(node, position))

    def living(self) -> list[Trail]:
        """The trails of memory that is still alive."""
        with self._lock:
            alive = [regions for reference, regions in self._of.values() if not reference.expired()]
        return [one.trail for regions in alive for one in regions]

    def clear(self) -> None:
        with self._lock:
            self._of.clear()
            self._edges.clear()

    def _purge(self) -> None:
        if len(self._of) >= self._next_purge:
            self._of = {key: one for key, one in self._of.items() if not one[0].expired()}
            self._next_purge = max(FEW, 2 * len(self._of))


def _storage(tensor: Any) -> Any:
    try:
        return tensor.untyped_storage()
    except (AttributeError, NotImplementedError, RuntimeError):  # sparse, and wrappers
        return None


def _extent(tensor: Any) -> tuple[int, int]:
    """The bytes of the storage from its first element to its last."""
    size = tensor.element_size()
    start = tensor.storage_offset() * size
    last = sum((length - 1) * stride for length, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return start, start + (last + 1) * size


def _edges(node: Any, position: int) -> Iterator[tuple[Any, ...]]:
    """The edge, and those behind nodes that compute nothing."""
    while node is not None:
        yield _key(node, position)
        if node.name() not in MOVES_GRADIENTS or len(node.next_functions) != 1:
            return
        node, position = node.next_functions[0]


def _key(node: Any, position: int) -> tuple[Any, ...]:
    leaf = getattr(node, "variable", None)
    if leaf is not None:
        return ("leaf", leaf._cdata)
    return (node.name(), node._sequence_nr(), position)
