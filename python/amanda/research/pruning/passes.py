"""Passes: what a tool keeps for one execution of a model, from the call of its outermost module to its return."""

from __future__ import annotations

import copy
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import torch

from amanda.toolkit import locks
from amanda.toolkit.torch import RUN_MODULE, checkpointed_regions

T = TypeVar("T")

UNSEEN = "it follows calls of modules, which compiled code does not make"


class Passes(Generic[T]):
    """The states of a tool, one for each pass on each thread.

    A pass is one call of a module that is called outside all other modules; or, if a model is given, of that. Outside such
    calls, a pass begins when the scope is entered. A recomputation by a checkpoint continues with the state in which
    the first run of the region began.

    Arguments:
        make: creates the state of a pass, which `copy.copy` must separate from later changes.
        model: the module whose calls are passes. By default, the outermost one.

    Raises:
        TypeError: `model` is not a module.
    """

    def __init__(self, make: Callable[[], T], model: torch.nn.Module | None = None) -> None:
        if model is not None and not isinstance(model, torch.nn.Module):
            raise TypeError(f"[pruning] model= is the module of which one call is one pass, got {model!r}")
        self._make = make
        self._model = model
        self._thread = _Thread()
        self._began: weakref.WeakKeyDictionary[Any, T] = weakref.WeakKeyDictionary()  # regions, and the state then
        self._lock = locks.lock()  # guards the states of regions

    def open(self) -> None:
        """For `Tool.on_enter`."""
        self._thread.scopes += 1
        if self._thread.scopes == 1:
            self._begin(None)

    def close(self) -> None:
        """For `Tool.on_exit`."""
        self._thread.scopes -= 1
        if not self._thread.scopes:
            self._thread.call = None

    @property
    def last(self) -> T:
        """The state of this thread's last pass."""
        state: T | None = self._thread.state
        return self._begin(None) if state is None else state

    def now(self) -> tuple[T, bool]:
        """The state for an operator that runs now, and whether a checkpoint is recomputing it."""
        regions = checkpointed_regions()
        recomputed = any(backward_pass is not None for _, backward_pass in regions)
        if not recomputed and (call := self._call()) is not self._thread.call:
            self._begin(call)
        state: T = self.last
        for region, backward_pass in regions:
            with self._lock:
                began = self._began.setdefault(region, copy.copy(state))
            if backward_pass is not None:
                if self._thread.recomputed.get(region, (None,))[0] != backward_pass:
                    self._thread.recomputed[region] = backward_pass, copy.copy(began)
                state = self._thread.recomputed[region][1]
        return state, recomputed

    def _begin(self, call: dict[str, Any] | None) -> T:
        state = self._make()
        self._thread.call, self._thread.state = call, state
        return state

    def _call(self) -> dict[str, Any] | None:
        """The running call of the model: its keyword arguments, a dict that no other call has."""
        found, frame = None, sys._getframe(1)
        while frame is not None:
            if frame.f_code is RUN_MODULE and (self._model is None or frame.f_locals["self"] is self._model):
                found = frame.f_locals["kwargs"]
            frame = frame.f_back  # type: ignore[assignment]
        return found


class _Thread(threading.local):
    def __init__(self) -> None:
        self.scopes = 0  # that the thread has entered
        self.call: dict[str, Any] | None = None  # of which `state` is; kept, so that no other call gets its address
        self.state: Any = None
        self.recomputed: weakref.WeakKeyDictionary[Any, tuple[int, Any]] = weakref.WeakKeyDictionary()
