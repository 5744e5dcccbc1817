"""The writes to each storage, as long as it lives."""

from __future__ import annotations

import math
from typing import Any

from amanda.toolkit.torch import StorageWeakRef

from .finding import Write

KEPT = 16  # of the last writes to a storage


class Writes:
    """Writes by the address of the storage. It keeps no storage alive."""

    def __init__(self) -> None:
        self._of: dict[int, tuple[StorageWeakRef, list[Write]]] = {}
        self._grown = 1000

    def add(self, tensor: Any, write: Write) -> None:
        storage = tensor.untyped_storage()
        known = self._of.get(storage._cdata)
        if known is None or known[0].expired():
            self._forget_dead()
            known = self._of[storage._cdata] = (StorageWeakRef(storage), [])
        known[1].append(write)
        del known[1][:-KEPT]

    def to(self, storage: int) -> list[Write]:
        """In order."""
        reference, found = self._of.get(storage, (None, []))
        return [] if reference is None or reference.expired() else found

    def alike(self, size: int, expected: int, version: int) -> list[list[Write]]:
        """For each tensor of that number of elements with this version now: the writes after the expected version."""
        living = (writes for reference, writes in list(self._of.values()) if not reference.expired())
        since = ([one for one in writes if one.after > expected] for writes in living)
        return [
            writes for writes in since if writes and (math.prod(writes[0].shape), writes[-1].after) == (size, version)
        ]

    def _forget_dead(self) -> None:
        if len(self._of) < self._grown:
            return
        self._of = {address: known for address, known in list(self._of.items()) if not known[0].expired()}
        self._grown = max(1000, 2 * len(self._of))
