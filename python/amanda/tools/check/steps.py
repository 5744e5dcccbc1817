"""OptimizerSteps: tells rules of the steps of all optimizers, while a scope is open. Imports torch."""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from amanda.toolkit import Place, own_work
from amanda.toolkit.frames import PACKAGE, is_library, line_of, outwards

from .rule import Rule, Step

_TORCH = os.path.dirname(torch.__file__) + os.sep


class OptimizerSteps:
    """The hooks, and a count for each optimizer."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._before = [rule for rule in rules if type(rule).before_step is not Rule.before_step]
        self._after = [rule for rule in rules if type(rule).after_step is not Rule.after_step]
        self._counts: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._running: dict[int, Step] = {}  # by the optimizer's id
        self._remove: list[Callable[[], None]] = []
        self._backward_passes = 0
        self.optimizers = self.steps = 0

    def reset(self) -> None:
        self._counts.clear()
        self.optimizers = self.steps = self._backward_passes = 0

    def open(self) -> None:
        if not self._remove:
            register = (register_optimizer_step_pre_hook, self._begin), (register_optimizer_step_post_hook, self._end)
            self._remove = [add(hook).remove for add, hook in register]

    def close(self) -> None:
        for remove in self._remove:
            remove()
        self._remove.clear()

    def count_backward(self) -> None:
        """A backward pass has begun."""
        self._backward_passes += 1

    def _begin(self, optimizer: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        closure = (args[1] if len(args) > 1 else None) or kwargs.get("closure")
        number = self._counts.get(optimizer, 0)
        place = Place(None, f"{type(optimizer).__name__}.step", "", program_line(sys._getframe(1)))
        step = Step(optimizer, number, place, closure is not None, self._backward_passes)
        self._running[id(optimizer)] = step
        with own_work():
            for rule in self._before:
                rule.before_step(step)

    def _end(self, optimizer: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        step = self._running.pop(id(optimizer), None)
        if step is None:
            return  # it began before the scope
        with own_work():
            for rule in self._after:
                rule.after_step(step)
        self._counts[optimizer] = step.number + 1
        self._backward_passes = 0
        self.steps += 1
        self.optimizers += not step.number


def program_line(frame: FrameType | None) -> str:
    """The line of the program from which this frame is called: the user's, else a library's that is not torch."""
    outer = [one for one in outwards(frame) if not one.f_code.co_filename.startswith((PACKAGE, _TORCH, "<"))]
    found = next((one for one in outer if not is_library(one.f_code.co_filename)), outer[0] if outer else None)
    return f"{found.f_code.co_filename}:{line_of(found.f_code, found.f_lasti)}" if found is not None else ""
