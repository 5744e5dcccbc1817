"""KerasSteps: calls rules after the steps of all optimizers of Keras, while a scope is open."""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from amanda.toolkit import Place
from amanda.toolkit.frames import program_line
from amanda.toolkit.optimizers import register_optimizer_step_post_hook

from .rule import Rule


class KerasSteps:
    """The hook, and a count."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._rules = [rule for rule in rules if type(rule).after_keras_step is not Rule.after_keras_step]
        self._made: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()  # steps, by optimizer
        self._remove: Callable[[], None] | None = None
        self.optimizers = self.steps = 0

    def reset(self) -> None:
        self._made.clear()
        self.optimizers = self.steps = 0

    def open(self) -> None:
        if self._remove is None:
            self._remove = register_optimizer_step_post_hook(self._after).remove

    def close(self) -> None:
        if self._remove is not None:
            self._remove()
            self._remove = None

    def _after(self, optimizer: Any) -> None:
        if hasattr(optimizer, "param_groups") or not hasattr(optimizer, "iterations"):
            return  # PyTorch's, or a session's
        from amanda.toolkit.tensorflow import steps_of

        made = steps_of(optimizer)
        self.optimizers += optimizer not in self._made
        self.steps += made - self._made.get(optimizer, made - 1)
        self._made[optimizer] = made
        place = functools.partial(_place, optimizer, sys._getframe(1))
        for rule in self._rules:
            rule.after_keras_step(optimizer, made, place)


def _place(optimizer: Any, frame: Any) -> Place:
    return Place(None, f"{type(optimizer).__name__}.apply", "", program_line(frame))
