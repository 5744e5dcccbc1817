"""Tells when something dies that is known by its address, or by its number.

The driver notes deaths as they happen, without Python code; here they are told of when the next place is named. So a
table by address must be asked only about what was alive then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from amanda import _torch

_of_objects: list[Callable[[int], object]] = []
_of_tensors: list[Callable[[int], object]] = []

watch = _torch.watch


def listen(*, objects: Callable[[int], object] | None = None, tensors: Callable[[int], object] | None = None) -> None:
    """Has `objects(address)` called for each watched thing that dies, `tensors(number)` for each numbered tensor."""
    _of_objects.extend([objects] if objects else [])
    _of_tensors.extend([tensors] if tensors else [])


_pending: list[tuple[Callable[[int], object], int]] = []


def tell() -> None:
    """Tells of the deaths since the last call."""
    _pending.extend(_calls())
    while _pending:  # what a signal handler interrupts is told of the next time
        died, key = _pending[-1]
        died(key)
        _pending.pop()


def _calls() -> Iterator[tuple[Callable[[int], object], int]]:
    for key in _torch.dead_objects():
        for died in _of_objects:
            yield died, key
    for number in _torch.dead_numbers():
        for died in _of_tensors:
            yield died, number
