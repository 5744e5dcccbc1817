"""step-without-effect."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Iterable
from typing import Any

from amanda.toolkit import Place

from ..gradients import first, name_of, version
from ..rule import Rule, Step

LEAST = 3  # steps without effect in a row, up to the end


class StepWithoutEffect(Rule):
    """An optimizer has gradients that are not zero, and a learning rate, and its step writes to no parameter: three times
    or more, up to the end of the program. Optimizers that do so now and then, as those that accumulate, are no finding.

    It looks at two parameters. Their values are read only if the step has not written to them through autograd's eyes.
    """

    name = "step-without-effect"
    sentence = "the optimizer's step changes nothing"
    fix = "call the step() of torch.optim itself, or look in step() for what is left out"
    bad = """
        class Lazy(torch.optim.SGD):
            def step(self, closure=None):
                for group in self.param_groups:
                    for one in group["params"]:
                        one.data + group["lr"] * one.grad
        optimizer = Lazy(model.parameters(), 0.1)
        for _ in range(4):
            optimizer.zero_grad()
            F.cross_entropy(model(x), labels).backward()
            optimizer.step()
    """
    good = """
        class Simple(torch.optim.SGD):
            def step(self, closure=None):
                for group in self.param_groups:
                    for one in group["params"]:
                        one.data -= group["lr"] * one.grad
        optimizer = Simple(model.parameters(), 0.1)
        warm = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0, step - 3))
        for _ in range(8):
            optimizer.zero_grad()
            F.cross_entropy(model(x), labels).backward()
            optimizer.step()
            warm.step()
    """

    def begin(self) -> None:
        self._known: weakref.WeakKeyDictionary[Any, _Steps] = weakref.WeakKeyDictionary()
        self._all: list[_Steps] = []  # also of optimizers that are gone

    def before_step(self, step: Step) -> None:
        known = self._known.get(step.optimizer)
        if known is None:
            known = self._known[step.optimizer] = _Steps()
            self._all.append(known)
        known.before = [] if step.has_closure else [self._sample(one, known.unseen > 0) for one in _sampled(step)]

    def after_step(self, step: Step) -> None:
        known = self._known.get(step.optimizer)
        if known is None or not known.before:
            return
        before, known.before = known.before, []
        if any(self._is_changed(one) for one in before):
            known.has_resumed = known.has_resumed or known.unseen >= LEAST
            known.unseen = known.faulty = 0
            return
        known.unseen += 1
        rates = [float(group.get("lr", 0)) for group in step.optimizer.param_groups]
        if all(one.values is not None for one in before) and all(rates) and any(map(self._has_gradient, before)):
            known.faulty += 1
            known.place, known.evidence = (
                step.place,
                f"the gradient of {name_of(before[0].parameter())} is not zero, and it stays as it is",
            )
        else:
            known.faulty = 0

    def _sample(self, parameter: Any, with_values: bool) -> _Sample:
        values = self.read_quietly(parameter, first) if with_values else None
        return _Sample(weakref.ref(parameter), version(parameter), values)

    def _is_changed(self, before: _Sample) -> bool:
        parameter = before.parameter()
        if parameter is None or version(parameter) != before.version:
            return True
        if before.values is None:
            return False  # not known: the next step is looked at with its values
        return not self.read_quietly(parameter, lambda now: bool((first(now) == before.values).all()))

    def _has_gradient(self, before: _Sample) -> bool:
        gradient = getattr(before.parameter(), "grad", None)
        return gradient is not None and bool(self.read_quietly(gradient, lambda plain: bool(plain.any())))

    def at_end(self, ended_well: bool) -> None:
        for known in self._all:
            if known.place is not None and known.faulty >= LEAST and not known.has_resumed:
                self.found(known.place, known.evidence, count=known.faulty)
        self.begin()


@dataclasses.dataclass
class _Sample:
    parameter: weakref.ref[Any]
    version: int
    values: Any  # its first elements; None if they were not read


@dataclasses.dataclass
class _Steps:
    before: list[_Sample] = dataclasses.field(default_factory=list)
    unseen: int = 0  # steps in a row of which no write was seen
    faulty: int = 0  # those of them that are known to change nothing
    has_resumed: bool = False  # after several such steps, one had an effect
    place: Place | None = None
    evidence: str = ""


def _sampled(step: Step) -> list[Any]:
    """The first and the last parameter that has a gradient."""
    ends = (_with_gradient(step.parameters), _with_gradient(reversed(step.parameters)))
    return list({id(one): one for one in ends if one is not None}.values())


def _with_gradient(parameters: Iterable[Any]) -> Any:
    return next((one for one in parameters if one.requires_grad and one.grad is not None), None)
