"""step-without-backward."""

from __future__ import annotations

import weakref
from typing import Any

from ..rule import Rule, Step


class StepWithoutBackward(Rule):
    """An optimizer steps, and no gradient of its parameters is new: there is none, or all are those of its last step. Seen
    in two steps in a row, without a backward pass before them. Gradients that another step cleared are
    "gradient-cleared".
    """

    name = "step-without-backward"
    sentence = "the optimizer steps without a new gradient"
    fix = "call loss.backward() before optimizer.step(), once per step"
    counts_backward = True
    bad = """
        for _ in range(4):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), labels)
            optimizer.step()
    """
    good = """
        for _ in range(4):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), labels)
            loss.backward()
            optimizer.step()
    """

    def begin(self) -> None:
        self._used: weakref.WeakKeyDictionary[Any, list[Any]] = (
            weakref.WeakKeyDictionary()
        )  # of suspects: all gradients
        self._in_a_row: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

    def before_step(self, step: Step) -> None:
        if not step.has_closure:
            self._judge(step, step.backward_passes == 0)

    def after_step(self, step: Step) -> None:
        from ..gradients import Used, sampled

        if step.has_closure:
            self._judge(step, True)
        is_suspect = self._in_a_row.get(step.optimizer)
        parameters = step.parameters
        used = [Used(one) for one in parameters if one.grad is not None] if is_suspect else sampled(parameters)
        self._used[step.optimizer] = used

    def _judge(self, step: Step, no_backward: bool) -> None:
        used = self._used.get(step.optimizer)
        is_trained = any(one.requires_grad for one in step.parameters)  # else it is "all-frozen"
        if not no_backward or not is_trained or used is None:
            self._in_a_row[step.optimizer] = 0
            return
        has_none = all(one.grad is None for one in step.parameters)
        is_old = bool(used) and all(one.is_unchanged for one in used)
        count = self._in_a_row[step.optimizer] = self._in_a_row.get(step.optimizer, 0) + 1 if has_none or is_old else 0
        if count > 1:
            what = "none of its parameters has a gradient" if has_none else "all gradients are those of the last step"
            self.found(step.place, what, count=2 if count == 2 else 1)
