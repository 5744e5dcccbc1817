"""Dynamo's callbacks, which compile frames, with our backend in the place of the program's own."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from amanda import _torch
from amanda.core import fork, scope
from amanda.drivers.torch_compile import port
from amanda.drivers.torch_compile.front import eager_frames, failures, regions
from amanda.drivers.torch_compile.front.backend import InstrumentingBackend
from amanda.drivers.torch_compile.places import capture


class InstrumentingCallback:
    """Compiles frames as `compile`, a callback with our backend, does. Tools do not see operators that run
    meanwhile."""

    def __init__(self, compile: Any) -> None:
        self._compile = compile
        self._torchdynamo_orig_backend = compile._torchdynamo_orig_backend  # Dynamo finds the backend through it

    def __call__(self, frame: Any, cache_entry: Any, frame_state: Any) -> Any:
        skipped = port.skipped_by_caller()
        if skipped is not None:
            return skipped
        if _torch.sees_nothing():  # between graphs an operator has called a routine or an analysis of a tool
            return port.skipped_with_callees("code of a tool is not compiled")
        if scope.compiled_here() == "auto" and (reason := eager_frames.reason(frame)):
            return eager_frames.run(reason)
        failure = failures.expect()
        _torch.enter_graph()
        try:
            with regions.limits(), capture.capturing():
                result = self._compile(frame, cache_entry, frame_state)
        except Exception:
            if failure.error is None:
                raise
        finally:
            _torch.leave_graph()
        if failure.error is None:
            return result
        error, failure.error = failure.error, None  # or its traceback would keep the program's objects
        if scope.compiled_here() != "auto":
            raise error  # an analysis raised it: as itself, not as a failure of the compiler
        return eager_frames.run_from_now_on(frame, error)


_lock = fork.rlock()
_known: weakref.WeakKeyDictionary[Any, InstrumentingCallback] = weakref.WeakKeyDictionary()


def instrumented(callback: Any, from_stance: Callable[[Any], Any]) -> Any:
    """See front.callback_for()."""
    chosen = from_stance(callback)
    if chosen not in (None, False) and port.has_fake_mode():
        return InstrumentingCallback(chosen)  # with the backend as it is: as in eager mode, no tool sees fake tensors
    if chosen is callback and (known := _known.get(callback)) is not None:
        regions.enter()
        return known
    if chosen in (None, False) or port.is_export(callback):
        return chosen
    regions.enter()
    if isinstance(chosen, port.CatchErrorsWrapper):  # the function's own, or one for the stance's backend
        return _instrumented(chosen)
    return InstrumentingCallback(from_stance(_with_our_backend(callback)))


def _instrumented(callback: Any) -> InstrumentingCallback:
    with _lock:
        known = _known.get(callback)
        if known is None:
            known = _known[callback] = InstrumentingCallback(_with_our_backend(callback))
        return known


def _with_our_backend(callback: Any) -> Any:
    convert = callback._torchdynamo_orig_backend
    backend = InstrumentingBackend(convert._torchdynamo_orig_backend)
    return port.catch_errors_wrapper(convert._clone_with_backend(backend), callback.hooks)
