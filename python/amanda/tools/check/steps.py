"""OptimizerSteps: calls rules at the steps of all optimizers, while a scope is open. Imports torch."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from .rule import Rule, Step


class OptimizerSteps:
    """The hooks, and a count for each optimizer."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._before = _Hooks(rules, "before_step")
        self._after = _Hooks(rules, "after_step")
        self._before_backward = [rule for rule in rules if type(rule).before_backward is not Rule.before_backward]
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

    def begin_backward(self) -> None:
        """The program calls `backward()`."""
        self._backward_passes += 1
        for rule in self._before_backward:
            rule.call(rule.before_backward)

    def _begin(self, optimizer: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        closure = (args[1] if len(args) > 1 else None) or kwargs.get("closure")
        number = self._counts.get(optimizer, 0)
        step = self._running[id(optimizer)] = Step(optimizer, number, closure is not None, self._backward_passes)
        self._before.call(step)

    def _end(self, optimizer: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        step = self._running.pop(id(optimizer), None)
        if step is None:
            return  # it began before the scope
        step.passes_inside = self._backward_passes - step.backward_passes
        self._after.call(step)
        self._counts[optimizer] = step.number + 1
        self._backward_passes = 0
        self.steps += 1
        self.optimizers += not step.number


class _Hooks:
    """A method of rules. There are many, and steps are short: it is called directly."""

    def __init__(self, rules: Sequence[Rule], name: str) -> None:
        own = [rule for rule in rules if getattr(type(rule), name) is not getattr(Rule, name)]
        self._first = [(rule, getattr(rule, name)) for rule in own]
        self._later = [(rule, method) for rule, method in self._first if not rule.only_first_steps]

    def call(self, step: Step) -> None:
        for rule, method in self._later if step.number else self._first:
            try:
                method(step)
            except Exception as error:  # a rule is no reason to end a program
                rule.failed(error)
