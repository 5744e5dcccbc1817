"""Frames that were to be compiled with taps, and run eagerly: scopes with `compiled="auto"` prefer that to an error."""

from __future__ import annotations

import weakref
from types import CodeType
from typing import Any

from amanda.core import fork, scope
from amanda.drivers.torch import compiled, recomputation
from amanda.drivers.torch_compile import port
from amanda.drivers.torch_compile.front import uninstrumented
from amanda.drivers.torch_compile.front.failures import NoTapsError

_lock = fork.rlock()  # reentrant: garbage collection may forget a code object at any time
_reasons: weakref.WeakKeyDictionary[CodeType, str] = weakref.WeakKeyDictionary()


def reason(frame: Any) -> str | None:
    """The reason why no taps can be put into the frame's code; None if nobody has tried, or if they can."""
    return _reasons.get(frame.f_code)


def run_from_now_on(frame: Any, error: Exception) -> Any:
    """Dynamo's answer for a frame whose compilation ended with `error`: run it as it is, with what it calls.

    If a tool's analysis has failed, compiled functions run eagerly in its scopes from now on: another analysis, that of
    the eager operator, shows whether it was the tool's own error.
    """
    if isinstance(error, NoTapsError):
        with _lock:
            why = _reasons[frame.f_code] = str(error)
    else:
        why = _described(error)
        scope.run_eagerly(why)
    return run(why)


def run(why: str) -> Any:
    """Dynamo's answer for a frame that runs as it is, with what it calls, for this reason."""
    recomputation.run_eagerly()
    compiled.runs_eagerly(why)
    return port.skipped_with_callees("it runs eagerly in a scope of amanda")


def _described(error: Exception) -> str:
    where = "".join(getattr(error, "__notes__", ())[-1:]).removeprefix("[amanda] ")
    return f"it fails on compiled code {where}: {uninstrumented.first_line(error)}"
