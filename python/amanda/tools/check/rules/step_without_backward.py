"""step-without-backward."""

from __future__ import annotations

import weakref
from typing import Any

from ..faulty_steps import OfFaultySteps
from ..gradients import Used
from ..rule import Step


class StepWithoutBackward(OfFaultySteps):
    """An optimizer steps, and no gradient of its parameters is new: there is none, or all are those of its last step. It
    reports, at the end, an optimizer with two such steps or more, and with at most one that was right: some steps without
    gradients may be meant. Steps with a backward pass before them are for "gradient-cleared".
    """

    name = "step-without-backward"
    sentence = "the optimizer steps without a new gradient"
    fix = "call loss.backward() before optimizer.step(), once per step"
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
        super().begin()
        self._used: weakref.WeakKeyDictionary[Any, list[Any]] = (
            weakref.WeakKeyDictionary()
        )  # of suspects: all gradients

    def before_step(self, step: Step) -> None:
        if not step.has_closure:
            self._steps.add(step, "" if step.backward_passes else self._fault(step))

    def after_step(self, step: Step) -> None:
        if step.has_closure:
            is_before = step.backward_passes and not step.passes_inside
            self._steps.add(step, "" if is_before else self._fault(step))
        every = self._steps.is_suspect(step.optimizer)
        used = [Used(one) for one in step.parameters if one.grad is not None] if every else step.used
        self._used[step.optimizer] = used

    def _fault(self, step: Step) -> str:
        parameters, used = step.parameters, self._used.get(step.optimizer)
        if not any(one.requires_grad for one in parameters):
            return ""  # it is "all-frozen"
        if all(one.grad is None for one in parameters):
            return "none of its parameters has a gradient"
        is_old = used and all(one.is_unchanged for one in used)
        return "all gradients are those of its last step" if is_old else ""
