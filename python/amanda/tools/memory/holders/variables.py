"""The variables of a function that runs, or that an exception or a generator keeps."""

from __future__ import annotations

import dis
import inspect
import sys
from types import CodeType, FrameType
from typing import Any

_BUILTINS = frozenset(("locals", "vars", "dir", "eval", "exec"))
_OF_FRAMES = frozenset(("_getframe", "currentframe", "stack"))
_HOLDERS = {**dict.fromkeys(_BUILTINS, "builtins"), "stack": "inspect"}
"""Modules without which an attribute of this name is another function: `model.eval`, `torch.stack`."""
_GLOBAL = frozenset(("LOAD_GLOBAL", "LOAD_NAME"))
_WRITES_THROUGH = sys.version_info >= (3, 13)  # `f_locals` of a function is a view


def variables_of(frame: FrameType) -> dict[str, Any] | None:
    """Its local variables; None if they can't be read without an effect.

    Before Python 3.13, `f_locals` of a function is a dict that the frame keeps, and that `locals()` returns. It is
    emptied: else it would hold what the program deletes. If the program may have it, it is not asked for.
    """
    if _WRITES_THROUGH or not frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        return dict(frame.f_locals)
    if sys.gettrace() is not None or _uses_locals(frame.f_code):
        return None
    found = frame.f_locals
    copied = dict(found)
    if sys.getrefcount(found) <= _OURS:
        found.clear()
    return copied


_OURS = 3  # the frame, the variable `found`, and the argument of getrefcount


def _uses_locals(code: CodeType) -> bool:
    """True if its names are those of functions that read its variables, or may be."""
    names = (_BUILTINS | _OF_FRAMES).intersection(code.co_names)
    if not names:
        return False
    if any(_HOLDERS.get(name, name) in code.co_names for name in names):
        return True
    return any(one.opname in _GLOBAL and one.argval in names for one in dis.get_instructions(code))
