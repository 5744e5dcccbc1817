"""gradient-discarded."""

from __future__ import annotations

import dataclasses
import sys
import weakref
from collections.abc import Callable
from typing import Any

from amanda import OpContext
from amanda.toolkit.evidence import counted
from amanda.toolkit.frames import program_line

from ..faulty_steps import OfFaultySteps
from ..gradients import names, storage, version
from ..rule import Step


class GradientDiscarded(OfFaultySteps):
    """Several backward passes run for each step, as for accumulation, and `zero_grad()` is called between them: the step
    uses the gradient of the last one. It reports, at the end, an optimizer with two such steps or more, and with at most
    one that was right.

    It says nothing if another line has called `backward()` for what was cleared, as in adversarial networks. Nor if an
    optimizer has stepped, a weight was written to, or a gradient was replaced in between, as where the gradients of
    several tasks are combined. The first step of an optimizer is not looked at.
    """

    name = "gradient-discarded"
    sentence = "gradients are cleared before a step has used them"
    fix = "call optimizer.zero_grad() once per step, not for each backward pass that is accumulated"
    group = "of few operators"
    ops = ("zero_", "_foreach_zero_", "copy_", "_foreach_copy_")
    counts_backward = False
    bad = """
        for i in range(12):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), labels) / 3
            loss.backward()
            if i % 3 == 2:
                optimizer.step()
    """
    good = """
        for i in range(12):
            loss = F.cross_entropy(model(x), labels) / 3
            loss.backward()
            if i % 3 == 2:
                optimizer.step()
                optimizer.zero_grad()
    """

    _stop: Callable[[], None] | None = None

    def begin(self) -> None:
        super().begin()
        self._passes: weakref.WeakKeyDictionary[Any, _Passes] = weakref.WeakKeyDictionary()  # by optimizer
        self._has_gradients = False  # passes since the last step have left some

    def look(self, context: OpContext) -> None:
        is_clear = "zero" in context.op.__name__
        context.insert_before_op(self._on_write, inputs=[0], is_clear=is_clear)

    def _on_write(self, written: Any, is_clear: bool) -> None:
        if self._has_gradients:
            memory = {storage(one) for one in (written if isinstance(written, (list, tuple)) else [written])}
            for passes in self._passes.values():
                passes.write(memory, is_clear)

    def before_pass(self) -> None:
        """A backward pass is about to run."""
        for passes in self._passes.values():
            passes.begin()

    def after_pass(self) -> None:
        """It has run."""
        line = program_line(sys._getframe(1))
        for passes in self._passes.values():
            passes.end(line)
        self._has_gradients = bool(self._passes)

    def before_step(self, step: Step) -> None:
        passes = self._passes.get(step.optimizer)
        if passes is not None and not step.has_closure:
            self._steps.add(step, passes.fault())

    def after_step(self, step: Step) -> None:
        parameter = next((one for one in step.parameters if one.grad is not None), None)
        for passes in self._passes.values():
            passes.clear()
        self._has_gradients = False
        if parameter is not None:
            self._passes[step.optimizer] = _Passes(weakref.ref(parameter))
            self._listen()

    def _listen(self) -> None:
        if self._stop is None:
            from amanda.toolkit.torch import listen_to_backward

            self._stop = listen_to_backward(_Listener(weakref.ref(self)))

    def at_end(self, ended_well: bool) -> None:
        super().at_end(ended_well)
        if self._stop is not None:
            self._stop()
            self._stop = None


@dataclasses.dataclass
class _Passes:
    """The backward passes since the last step of any optimizer, as a parameter sees them."""

    parameter: weakref.ref[Any]
    before: tuple[int, int] | None = None  # the gradient before a pass: its identity and version
    gradient: weakref.ref[Any] | None = None  # as the last pass that gave one has left it
    version: int = 0  # of the parameter then
    kept: list[str] = dataclasses.field(default_factory=list)  # the lines of passes whose gradients are still there
    discarded: list[str] = dataclasses.field(default_factory=list)  # of those that were cleared
    is_zeroed: bool = False
    is_used: bool = False  # by something else than a step

    def begin(self) -> None:
        parameter = self.parameter()
        if parameter is None:
            return
        self._see(parameter)
        self.before = _state(parameter)

    def end(self, line: str) -> None:
        parameter = self.parameter()
        if parameter is None or parameter.grad is None or _state(parameter) == self.before:
            return
        self.gradient, self.version, self.is_zeroed = weakref.ref(parameter.grad), version(parameter), False
        self.kept.append(line)

    def write(self, memory: set[int | None], is_clear: bool) -> None:
        gradient = self.gradient() if self.gradient is not None else None
        if gradient is not None and storage(gradient) in memory:
            self.is_zeroed, self.is_used = is_clear, self.is_used or not is_clear

    def _see(self, parameter: Any) -> None:
        """Whether the program has cleared, replaced or used the gradient since the last pass."""
        if self.gradient is None or not self.kept:
            return
        self.is_used = self.is_used or version(parameter) != self.version
        if parameter.grad is None or self.is_zeroed:
            self.discarded += self.kept
            self.kept, self.gradient = [], None
        elif parameter.grad is not self.gradient():
            self.is_used = True

    def fault(self) -> str:
        """The mistake of the step that is about to use the gradient; "" if there is none."""
        parameter = self.parameter()
        if parameter is None or parameter.grad is None or self.gradient is None or not self.discarded:
            return ""
        self._see(parameter)
        if self.is_used or not self.kept or not set(self.discarded) <= set(self.kept):
            return ""
        passes = len(self.discarded) + len(self.kept)
        lost = counted(len(self.discarded), "gradient")
        return f"of {passes} backward passes since its last step, {lost} of {names([parameter])} were cleared"

    def clear(self) -> None:
        self.kept.clear()
        self.discarded.clear()
        self.gradient, self.is_used, self.is_zeroed = None, False, False


class _Listener:
    def __init__(self, rule: weakref.ref[GradientDiscarded]) -> None:
        self._rule = rule

    def begin(self, call: Any) -> None:
        rule = self._rule()
        if rule is not None and call.accumulates and not call.is_nested:
            rule.before_pass()

    def end(self, call: Any, error: BaseException | None, gradients: Any) -> None:
        rule = self._rule()
        if rule is not None and call.accumulates and not call.is_nested and error is None:
            rule.after_pass()


def _state(parameter: Any) -> tuple[int, int] | None:
    return None if parameter.grad is None else (id(parameter.grad), version(parameter.grad))
