"""normalization-frozen."""

from __future__ import annotations

import dataclasses
import weakref
from typing import Any

from amanda import OpContext
from amanda.toolkit import Place

from ..modes import Stepped, running
from ..rule import Rule, Step, operands

LAST_LOOK = 7  # step of an optimizer


class NormalizationFrozen(Rule):
    """The weight and the bias of a batch normalization are frozen, and it is in training mode: its statistics still change,
    with each batch. In evaluation, the frozen part of the model then computes something else than before the training.

    It reports normalizations in a model that is trained, whose own parameters no optimizer has trained. Some programs adapt
    statistics to new data on purpose.
    """

    name = "normalization-frozen"
    sentence = "frozen batch normalization learns new statistics"
    fix = "call eval() of the frozen part after each model.train()"
    is_advice = True
    ops = ("batch_norm", "_batch_norm_with_update")
    bad = """
        model.insert(1, nn.BatchNorm1d(8))
        model[:2].requires_grad_(False)
        F.cross_entropy(model(x), labels).backward()
        optimizer.step()
    """
    good = """
        model.insert(1, nn.BatchNorm1d(8))
        model[:2].requires_grad_(False)
        model[:2].eval()
        F.cross_entropy(model(x), labels).backward()
        optimizer.step()
    """

    def begin(self) -> None:
        self._stepped = Stepped()
        self._suspects: list[_Suspect] = []

    def look(self, context: OpContext) -> None:
        given, modules = operands(context), running()
        weight = given.get("weight")
        learns = given.get("training", True) and given.get("running_mean") is not None
        if learns and weight is not None and not weight.requires_grad and len(modules) > 1:
            self._suspects.append(_Suspect(weakref.ref(modules[0]), weakref.ref(modules[-1]), Place.of(context)))

    def before_step(self, step: Step) -> None:
        if any(one.requires_grad for one in step.parameters) and not step.number:
            self._stepped.add(step)
        if step.number in (0, LAST_LOOK):  # the model may be gone at the end
            for one in self._suspects:
                one.see(self._stepped)

    def at_end(self, ended_well: bool) -> None:
        for one in self._suspects:
            one.see(self._stepped)
            if one.is_trained and not one.is_unfrozen:
                self.found(one.place, "its weight is frozen, and it is in training mode")
        self.begin()


@dataclasses.dataclass
class _Suspect:
    module: weakref.ref[Any]
    outermost: weakref.ref[Any]
    place: Place
    is_trained: bool = False  # the model
    is_unfrozen: bool = False

    def see(self, stepped: Stepped) -> None:
        module, outermost = self.module(), self.outermost()
        if module is not None and outermost is not None:
            self.is_trained = self.is_trained or stepped.trains(outermost)
            own = module.parameters(recurse=False)
            self.is_unfrozen = self.is_unfrozen or any(one.requires_grad for one in own)
