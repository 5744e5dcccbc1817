"""Dynamo's callbacks, which compile frames, with our backend in the place of the program's own."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

from amanda import _torch
from amanda.drivers.torch_compile import capture, port, regions
from amanda.drivers.torch_compile.backend import InstrumentingBackend


class InstrumentingCallback:
    """Compiles frames as one of Dynamo's callbacks does, for the program's backend, with taps.

    Everything that runs meanwhile is out of the tools' sight.
    """

    def __init__(self, callback: Any) -> None:
        convert = callback._torchdynamo_orig_backend
        self._failed = threading.local()
        backend = InstrumentingBackend(convert._torchdynamo_orig_backend, self._failed)
        self._compile = port.catch_errors_wrapper(convert._clone_with_backend(backend), callback.hooks)
        self._torchdynamo_orig_backend = self._compile  # Dynamo finds the backend through it

    def __call__(self, frame: Any, cache_entry: Any, frame_state: Any) -> Any:
        skipped = port.skipped_by_caller()
        if skipped is not None:
            return skipped
        failed = self._failed.__dict__
        failed.clear()
        _torch.enter_compiled()
        try:
            with regions.limits(), capture.capturing():
                result = self._compile(frame, cache_entry, frame_state)
        except Exception:
            if "error" not in failed:
                raise
        finally:
            _torch.leave_compiled()
        if "error" in failed:
            raise failed.pop("error")  # an analysis raised it: as itself, not as a failure of the compiler
        return result


_known: weakref.WeakKeyDictionary[Any, InstrumentingCallback] = weakref.WeakKeyDictionary()


def instrumented(callback: Any, from_stance: Callable[[Any], Any]) -> Any:
    """See front.callback_for()."""
    chosen = from_stance(callback)
    if isinstance(chosen, port.CatchErrorsWrapper):  # the function's own, or one for the stance's backend
        return _instrumented(chosen)
    if chosen in (None, False) or not isinstance(callback, port.CatchErrorsWrapper):
        return chosen
    return from_stance(_instrumented(callback))


def _instrumented(callback: Any) -> Any:
    if port.is_export(callback):
        return callback
    known = _known.get(callback)
    if known is None:
        known = _known[callback] = InstrumentingCallback(callback)
    regions.enter()
    return known
