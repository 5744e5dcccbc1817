"""Frames: the Python calls around an operator, and the source files and lines that they are in."""

from __future__ import annotations

import enum
import functools
import linecache
import os
import sys
from typing import TYPE_CHECKING

from amanda.driver.identity.cells import line_in_cell
from amanda.driver.identity.frames import line_of, outwards
from amanda.reports.source_files import is_library, line_of_code, short_line, split_line

if TYPE_CHECKING:
    from types import FrameType

    from amanda.core.op_context import OpContext

PACKAGE = os.path.dirname(os.path.dirname(__file__)) + os.sep
"""The folder of Amanda's own files, which begins their paths."""

__all__ = [
    "PACKAGE",
    "is_library",
    "line_in_cell",
    "line_of",
    "line_of_code",
    "outwards",
    "program_line",
    "short_line",
    "split_line",
    "user_line",
]


def program_line(frame: FrameType | None) -> str:
    """The line of the program from which this frame is called, as file:line: the user's, else a library's that is not
    torch; "" if there is none."""
    torch = sys.modules.get("torch")
    folder = os.path.dirname(str(torch.__file__)) + os.sep if torch else ""
    best, found = _Kind.MACHINERY, None
    for one in outwards(frame):
        kind = _kind_of(one.f_code.co_filename, folder)
        if kind > best:
            best, found = kind, one
            if kind is _Kind.PROGRAM:
                break
    return f"{found.f_code.co_filename}:{line_of(found.f_code, found.f_lasti)}" if found is not None else ""


class _Kind(enum.IntEnum):
    MACHINERY = 0  # Amanda, torch, and code that has no file
    LIBRARY = 1
    PROGRAM = 2


@functools.lru_cache(maxsize=4096)
def _kind_of(path: str, torch_folder: str) -> _Kind:
    """Whose file it is."""
    if path.startswith((PACKAGE, "<")) or (torch_folder and path.startswith(torch_folder)):
        return _Kind.MACHINERY
    return _Kind.LIBRARY if is_library(path) else _Kind.PROGRAM


def user_line(context: OpContext) -> str:
    """The innermost line outside installed packages, as file:line: of the operator, or of the call that led to it.

    Only in a forward analysis on the thread of the program: there the program's frames are on the stack. Files in the
    folder of the caller are a tool's. Where there is no such line, the operator's own.
    """
    place = split_line(context.source)
    if place and not is_library(place[0]):
        return context.source
    caller = sys._getframe(1)
    ours = (PACKAGE, os.path.dirname(caller.f_code.co_filename) + os.sep)
    for frame in outwards(caller):
        path = frame.f_code.co_filename
        if not is_library(path) and not path.startswith(ours) and _is_written(path):
            return f"{path}:{line_of(frame.f_code, frame.f_lasti)}"
    return context.source


def _is_written(path: str) -> bool:
    """True if somebody wrote the code, and no library has generated it."""
    return not path.startswith("<") or (not path.startswith("<eval_with_key>") and bool(linecache.getlines(path)))
