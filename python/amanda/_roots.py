"""Where this thread's open scopes were entered: the root of ids outside models."""

from __future__ import annotations

import functools
import os
import sys
import threading
from types import FrameType


class _Entered(threading.local):
    def __init__(self) -> None:
        self.frames: dict[int, FrameType] = {}  # by entry, outermost scope first


_entered = _Entered()


def enter(entry: int) -> None:
    """Remembers the calling frame, outside this package and the standard library's context managers."""
    frame = sys._getframe(1)
    while frame.f_back is not None and _enters_for_others(frame.f_code.co_filename):
        frame = frame.f_back
    _entered.frames[entry] = frame


def leave(entry: int) -> None:
    _entered.frames.pop(entry, None)


def root() -> FrameType | None:
    """The frame that entered this thread's outermost open scope."""
    return next(iter(_entered.frames.values()), None)


@functools.cache
def _enters_for_others(filename: str) -> bool:
    return os.path.dirname(filename) == os.path.dirname(__file__) or os.path.basename(filename) == "contextlib.py"
