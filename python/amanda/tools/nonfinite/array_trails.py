"""ArrayTrails: where values that are not finite come from, for values that routines get as arrays of NumPy."""

from __future__ import annotations

import collections
from typing import Any

from amanda.toolkit import locks

from .links import Trail

FEW = 8  # that are kept whatever their size
MOST_KEPT = 256
MOST_BYTES = 1 << 28


class ArrayTrails:
    """By address: the arrays are views of TensorFlow's memory. Arrays with such values are kept, so that no other value
    gets their memory; of many the latest ones."""

    def __init__(self) -> None:
        self._lock = locks.lock()  # guards the fields below
        self._kept: collections.OrderedDict[int, tuple[Any, Trail]] = collections.OrderedDict()
        self._sums: set[int] = set()  # addresses
        self._bytes = 0
        self._has_dropped = False

    def note(self, array: Any, trail: Trail, *, is_sum: bool = False) -> None:
        """`array`: what an operator has just made; `is_sum`: of gradients, of which one has this trail."""
        address = _address(array)
        with self._lock:
            self._drop(address)
            self._kept[address] = array, trail
            if is_sum:
                self._sums.add(address)
            self._bytes += array.nbytes
            while len(self._kept) > FEW and (len(self._kept) > MOST_KEPT or self._bytes > MOST_BYTES):
                self._drop(next(iter(self._kept)))
                self._has_dropped = True

    def of(self, array: Any) -> Trail | None:
        """That of the latest operator which has made a value there."""
        with self._lock:
            _, trail = self._kept.get(_address(array), (None, None))
            return trail

    def is_sum(self, array: Any) -> bool:
        with self._lock:
            return _address(array) in self._sums

    def forget(self, array: Any) -> None:
        """`array`: finite values that an operator has just made, maybe in the memory of such a variable."""
        if self._kept:
            with self._lock:
                self._drop(_address(array))

    @property
    def has_dropped(self) -> bool:
        """True if there were too many to keep them all."""
        with self._lock:
            return self._has_dropped

    def clear(self) -> None:
        with self._lock:
            self._kept.clear()
            self._sums.clear()
            self._bytes, self._has_dropped = 0, False

    def _drop(self, address: int) -> None:
        self._sums.discard(address)
        array, _ = self._kept.pop(address, (None, None))
        if array is not None:
            self._bytes -= array.nbytes


def is_view(array: Any, values: Any) -> bool:
    """True if the array is in the memory of one of these: its operator has computed nothing."""
    return any(_address(value) == _address(array) and value.nbytes == array.nbytes for value in values)


def _address(array: Any) -> int:
    return int(array.__array_interface__["data"][0])
