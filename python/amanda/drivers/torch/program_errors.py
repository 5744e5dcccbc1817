"""Exceptions of the program that propagate through a tool's code. They are not failures of the tool.

A routine that is recorded (`differentiable=True`, replacements) runs under the program's saved-tensor hooks. These may
raise anything: `torch.utils.checkpoint` ends a recomputation with an exception.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from types import CodeType, TracebackType
from typing import Any

from amanda.drivers.torch import port


@port.leave_all_uncompiled
def is_programs(error: BaseException) -> bool:
    """True if the exception is the program's: an interrupt, or raised inside one of its saved-tensor hooks."""
    if not isinstance(error, Exception):
        return True
    hooks = set(_codes_of_hooks())
    return any(code in hooks for code in _codes_in(error.__traceback__))


def _codes_in(traceback: TracebackType | None) -> Iterator[CodeType]:
    while traceback is not None:
        yield traceback.tb_frame.f_code
        traceback = traceback.tb_next


def _codes_of_hooks() -> Iterator[CodeType]:
    """The code of the hooks that are in use on this thread."""
    for hook in port.saved_tensor_hooks(False) or ():
        function: Any = hook
        while isinstance(function, functools.partial):
            function = function.func
        while function is not None:
            code = getattr(function, "__code__", None) or getattr(type(function).__call__, "__code__", None)
            if code is not None:
                yield code
            function = getattr(function, "__wrapped__", None)
