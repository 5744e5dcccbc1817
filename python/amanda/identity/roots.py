"""Where this thread's open scopes were entered: the root of ids outside models."""

from __future__ import annotations

import functools
import os
import sys
import threading
from collections.abc import Callable
from types import CodeType, FrameType

from amanda.identity import frames


class _Entered(threading.local):
    def __init__(self) -> None:
        # By entry: the frame's address and code, because the frame itself would keep its locals alive.
        self.frames: dict[int, tuple[int, CodeType]] = {}


_entered = _Entered()


def enter(entry: int) -> Callable[[], object]:
    """Records the calling frame, ignoring those of this package and of the standard library's context managers.

    Returns a function that removes it.
    """
    frame = sys._getframe(1)
    while frame.f_back is not None and _enters_for_others(frame.f_code.co_filename):
        frame = frame.f_back
    known = _entered.frames  # at the thread's end, `_entered` can't be reached
    known[entry] = (id(frame), frame.f_code)
    return lambda: known.pop(entry, None)


def is_root(frame: FrameType) -> bool:
    """Did this frame enter one of the thread's open scopes?"""
    entered = list(_entered.frames.values())
    return any(key == id(frame) and code is frame.f_code for key, code in entered)


@functools.cache
def _enters_for_others(filename: str) -> bool:
    return frames.is_ours(filename) or os.path.basename(filename) == "contextlib.py"
