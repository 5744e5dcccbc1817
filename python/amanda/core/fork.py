"""Locks that are free in a forked child, with what they guard in a consistent state."""

from __future__ import annotations

import os
import threading
import time
import weakref
from typing import Any

_LONGEST = 5.0  # seconds: a lock held longer waits for the thread that forks
_locks: weakref.WeakSet[Any] = weakref.WeakSet()
_held: list[Any] = []


def lock() -> threading.Lock:
    """A lock as that of `threading`, to be made once per object or module. Hold it for moments."""
    made = threading.Lock()
    _locks.add(made)
    return made


def rlock() -> Any:
    """A lock as `lock` makes, which the thread that holds it may take again."""
    made = threading.RLock()
    _locks.add(made)
    return made


def _hold_all() -> None:
    """A thread may hold one lock and wait for another, so none is held here while waiting for another."""
    start = time.monotonic()
    try:
        while not _try_all() and time.monotonic() - start < _LONGEST:
            time.sleep(0.0001)
    except BaseException:  # an interrupt
        _release_all()
        raise


def _try_all() -> bool:
    for each in list(_locks):
        if not each.acquire(blocking=False):
            _release_all()
            return False
        _held.append(each)
    return True


def _release_all() -> None:
    while _held:
        _held.pop().release()


os.register_at_fork(before=_hold_all, after_in_parent=_release_all, after_in_child=_release_all)
