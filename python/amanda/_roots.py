"""Where this thread's open scopes were entered: the root of ids outside models."""

from __future__ import annotations

import functools
import os
import sys
import threading
from types import CodeType, FrameType


class _Entered(threading.local):
    def __init__(self) -> None:
        # By entry: the frame's address and code. The frame itself would keep its locals alive.
        self.frames: dict[int, tuple[int, CodeType]] = {}


_entered = _Entered()


def enter(entry: int) -> None:
    """Remembers the calling frame, outside this package and the standard library's context managers."""
    frame = sys._getframe(1)
    while frame.f_back is not None and _enters_for_others(frame.f_code.co_filename):
        frame = frame.f_back
    _entered.frames[entry] = (id(frame), frame.f_code)


def leave(entry: int) -> None:
    _entered.frames.pop(entry, None)


def is_root(frame: FrameType) -> bool:
    """Did this frame enter one of the thread's open scopes?"""
    entered = list(_entered.frames.values())
    return any(key == id(frame) and code is frame.f_code for key, code in entered)


@functools.cache
def _enters_for_others(filename: str) -> bool:
    return os.path.dirname(filename) == os.path.dirname(__file__) or os.path.basename(filename) == "contextlib.py"
