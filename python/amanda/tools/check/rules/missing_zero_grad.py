"""missing-zero-grad."""

from __future__ import annotations

import weakref
from typing import Any

from amanda import OpContext

from ..gradients import storage
from ..rule import Rule, Step


class MissingZeroGrad(Rule):
    """After a step, `backward()` adds to the gradients that the step has used, so that each step uses the sum of all
    gradients so far. Seen in two steps of an optimizer in a row.

    Accumulation that is meant is no finding: several backward passes for a step, if something clears the gradients after
    the step. Nor is a program that changes gradients between a step and the next backward pass, by whatever operator.
    """

    name = "missing-zero-grad"
    sentence = "backward() adds to the gradients that the last step has used"
    fix = "call optimizer.zero_grad() once per step, before backward()"
    group = "of few operators"
    ops = ("zero_", "_foreach_zero_")
    counts_backward = True
    bad = """
        for _ in range(4):
            loss = F.cross_entropy(model(x), labels)
            loss.backward()
            optimizer.step()
    """
    good = """
        for _ in range(4):
            optimizer.zero_grad(set_to_none=False)
            for _ in range(2):  # accumulates two gradients
                loss = F.cross_entropy(model(x), labels) / 2
                loss.backward()
            optimizer.step()
    """

    def begin(self) -> None:
        self._used: weakref.WeakKeyDictionary[Any, list[Any]] = weakref.WeakKeyDictionary()  # by optimizer
        self._in_a_row: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

    def look(self, context: OpContext) -> None:
        context.insert_before_op(self._on_clear, inputs=[0])

    def _on_clear(self, written: Any) -> None:
        cleared = {storage(one) for one in (written if isinstance(written, (list, tuple)) else [written])}
        for used in self._used.values():
            for one in used:
                one.is_handled = one.is_handled or storage(one.gradient) in cleared

    def before_backward(self) -> None:
        for used in self._used.values():
            for one in used:
                one.see()

    def before_step(self, step: Step) -> None:
        if not step.has_closure:
            self._judge(step)

    def after_step(self, step: Step) -> None:
        if step.has_closure:
            self._judge(step)
        self._used[step.optimizer] = step.used

    def _judge(self, step: Step) -> None:
        used = self._used.get(step.optimizer)
        if not used or not all(one.was_added_to for one in used):
            self._in_a_row[step.optimizer] = 0
            return
        count = self._in_a_row[step.optimizer] = self._in_a_row.get(step.optimizer, 0) + 1
        if count > 1:
            evidence = f"that of {used[0].name} was not cleared between two steps"
            self.found(step.place, evidence, count=2 if count == 2 else 1)
