"""The variables of a function that runs, or that an exception or a generator keeps."""

from __future__ import annotations

import inspect
import sys
from types import FrameType
from typing import Any

_USES_LOCALS = frozenset(("locals", "vars", "dir", "eval", "exec", "_getframe", "currentframe", "stack"))
_WRITES_THROUGH = sys.version_info >= (3, 13)  # `f_locals` of a function is a view


def variables_of(frame: FrameType) -> dict[str, Any] | None:
    """Its local variables; None if they can't be read without an effect.

    Before Python 3.13, `f_locals` of a function is a dict that the frame keeps, and that `locals()` returns. It is
    emptied: else it would hold what the program deletes. If the program may have it, it is not asked for.
    """
    if _WRITES_THROUGH or not frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        return dict(frame.f_locals)
    if sys.gettrace() is not None or not _USES_LOCALS.isdisjoint(frame.f_code.co_names):
        return None
    found = frame.f_locals
    copied = dict(found)
    if sys.getrefcount(found) <= _OURS:
        found.clear()
    return copied


_OURS = 3  # the frame, the variable `found`, and the argument of getrefcount
