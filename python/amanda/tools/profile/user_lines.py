"""Lines of the user's own code, on the way from an operator outwards."""

from __future__ import annotations

import linecache
import os
import sys

from amanda import OpContext
from amanda.toolkit.frames import PACKAGE, is_library, line_of, outwards, split_line

_OURS = (PACKAGE, os.path.dirname(__file__) + os.sep)


def user_line(context: OpContext) -> str:
    """The innermost line outside installed packages, as file:line: of the operator, or of the call that led to it.

    Only in a forward analysis on the thread of the program: there the program's frames are on the stack. Where there is no
    such line, the operator's own.
    """
    place = split_line(context.source)
    if place and not is_library(place[0]):
        return context.source
    for frame in outwards(sys._getframe(1)):
        path = frame.f_code.co_filename
        if not is_library(path) and not path.startswith(_OURS) and _is_written(path):
            return f"{path}:{line_of(frame.f_code, frame.f_lasti)}"
    return context.source


def _is_written(path: str) -> bool:
    """True if somebody wrote the code, and no library has generated it."""
    return not path.startswith("<") or (not path.startswith("<eval_with_key>") and bool(linecache.getlines(path)))
