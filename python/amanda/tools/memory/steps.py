"""Steps: where one step of a program ends, and the next begins."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from typing import Any

import torch

from amanda.toolkit.frames import outwards
from amanda.toolkit.locks import lock
from amanda.toolkit.torch import RUN_MODULE, held, named_parts, running_modules

MARKED = 3  # operators of a module of which one begins each call


class Steps:
    """Calls `on_step` where a step ends: with the steps of an optimizer, or else with the calls of the outermost module.

    The optimizer is any that has the parameter of the first one that steps: a program may have several, or a new one for
    each step. The module is the first one with parameters that no other module calls.

    Attributes:
        what: "step of Adam" or "call of Sequential"; "" before the first.
        count: of those that have ended.
    """

    def __init__(self, on_step: Callable[[], object]) -> None:
        self.what, self.count = "", 0
        self._on_step = on_step
        self._lock = lock()
        self._parameter: weakref.ref[torch.Tensor] | None = None
        self._module: weakref.ref[torch.nn.Module] | None = None
        self._marked, self._is_called = 0, False
        self._call: weakref.ref[_Call] | None = None

    def on_optimizer(self, optimizer: Any) -> None:
        """An optimizer has stepped."""
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        with self._lock:
            known = self._parameter and self._parameter()
            if known is None and parameters:
                is_first = self._parameter is None
                known, self._parameter = parameters[0], weakref.ref(parameters[0])
                if is_first:
                    self._begin(f"step of {type(optimizer).__name__}")
            if not any(parameter is known for parameter in parameters):
                return
            self.count += 1
        self._on_step()

    def marks(self) -> bool:
        """Whether `on_call` has to be called before each run of the operator that is being analyzed."""
        outermost = next(iter(running_modules()[-1:]), None)
        if self._parameter is not None or outermost is None:
            return False
        with self._lock:
            if (self._module and self._module()) is None and _has_parameters(outermost):
                self._module = weakref.ref(outermost)
                self._begin(f"call of {type(outermost).__name__}")
            if self._module is None or self._module() is not outermost or self._marked == MARKED:
                return False
            self._marked += 1
        return True

    def on_call(self) -> None:
        """A marked operator runs: a call of the module has begun, unless it is still the same one."""
        if self._parameter is not None:
            return
        call = _outermost_call()
        if call is None or call.f_locals.get("self") is not (self._module and self._module()):
            return
        with self._lock:
            if (self._call is not None and self._call() is not None) or not self._mark(call):
                return
            is_first, self._is_called = not self._is_called, True
            self.count += not is_first
        if not is_first:
            self._on_step()

    def reset(self) -> None:
        """The next step is the first."""
        self.count, self._is_called = 0, False

    def _mark(self, call: Any) -> bool:
        """Puts something into the frame that dies with it. A debugger has this place, if there is one."""
        if sys.gettrace() is not None or call.f_trace is not None:
            return False
        call.f_trace = mark = _Call()
        self._call = weakref.ref(mark)
        return True

    def _begin(self, what: str) -> None:
        self.what, self.count, self._marked, self._is_called = what, 0, 0, False


class _Call:
    """Lives as long as the frame in which it is."""

    def __call__(self, *event: object) -> None:
        """Python calls this for each line if the program begins to trace."""


def _has_parameters(module: Any) -> bool:
    return any(True for _, part in named_parts(module) for _ in held(part, "_parameters"))


def _outermost_call() -> Any:
    found = None
    for frame in outwards(sys._getframe()):
        if frame.f_code is RUN_MODULE:
            found = frame
    return found
