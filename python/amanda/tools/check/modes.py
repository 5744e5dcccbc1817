"""Modes: whether an operator runs in training or in evaluation."""

from __future__ import annotations

import dataclasses
import sys
import weakref
from collections.abc import Iterator
from typing import Any

from amanda import OpContext
from amanda.toolkit import Place
from amanda.toolkit.frames import outwards

from .rule import Rule, Step

_MEANT = {"update_bn", "update_bn_stats"}
"""Functions that run a model in training mode without gradients on purpose: of torch.optim.swa_utils, of fvcore."""


def records() -> bool:
    """True if autograd records. To be called in a routine that is `differentiable`, which runs in the program's mode."""
    import torch

    return bool(torch.is_grad_enabled())


def running() -> list[Any]:
    """The modules that run, innermost first."""
    from amanda.toolkit.torch import running_modules

    return running_modules()


def called_at() -> str:
    """The line that calls the outermost module that runs; outside of modules, the line that runs."""
    from .lines import line_of_model

    return line_of_model()


def is_meant() -> bool:
    """A checkpointed region runs, which is recorded when it is recomputed, or a function that needs training mode."""
    from amanda.toolkit.torch import checkpointed_regions

    return bool(checkpointed_regions()) or any(f.f_code.co_name in _MEANT for f in outwards(sys._getframe(1)))


class Stepped:
    """The parameters that optimizers have stepped."""

    def __init__(self) -> None:
        self._parameters: dict[int, weakref.ref[Any]] = {}  # by id, which another gets when it is gone
        self.optimizers = self.steps = 0

    def add(self, step: Step) -> None:
        self.steps += 1
        if not step.number:
            self.optimizers += 1
            self._parameters.update((id(one), weakref.ref(one)) for one in step.parameters)

    def trains(self, module: Any) -> bool:
        """True if one of its parameters was stepped."""
        return any(self._has(one) for one in module.parameters())

    def _has(self, parameter: Any) -> bool:
        known = self._parameters.get(id(parameter))
        return known is not None and known() is parameter


class TrainingRuns:
    """Runs in training mode that autograd does not record: evaluation for which `eval()` was forgotten.

    Whether it is a mistake is known at the end. In a program that trains, only models that it trains count, from their
    first step on: teachers and momentum encoders may keep training mode. In one that trains nothing, all count.
    """

    def __init__(self) -> None:
        self._models: dict[int, _Runs] = {}  # by the outermost module's id
        self._chosen: weakref.WeakKeyDictionary[Any, weakref.ref[Any]] = (
            weakref.WeakKeyDictionary()
        )  # a module of each model
        self.stepped = Stepped()

    def wants(self) -> bool:
        """True for operators of the first such module of a model that is in the model's mode. Others have the same mode."""
        modules = running()
        if not modules or modules[0].training != modules[-1].training:
            return False
        chosen = self._chosen.get(modules[-1])
        if chosen is None or chosen() is None:
            chosen = self._chosen[modules[-1]] = weakref.ref(modules[0])
        return chosen() is modules[0]

    def add(self, place: Place) -> None:
        """An operator runs in training mode, and is not recorded."""
        modules = running()
        if not modules or not modules[0].training or not modules[-1].training or is_meant():
            return
        model = self._models.get(id(modules[-1]))
        if model is None or model.outermost() is not modules[-1]:
            model = self._models[id(modules[-1])] = _Runs(weakref.ref(modules[-1]), type(modules[-1]).__name__)
        if not model.is_trained and model.optimizers != self.stepped.optimizers:  # it may be gone at the end
            model.optimizers, model.is_trained = self.stepped.optimizers, self.stepped.trains(modules[-1])
        counts = model.after if self.stepped.steps else model.before
        if place not in counts:
            model.lines[place] = called_at()
        counts[place] = counts.get(place, 0) + 1

    def mistakes(self) -> Iterator[tuple[Place, str, int]]:
        """For each model: the operator, a text, and how often it ran."""
        for model in self._models.values():
            outermost = model.outermost()
            is_trained = model.is_trained or (outermost is not None and self.stepped.trains(outermost))
            for place, count in (model.after if self.stepped.steps else model.before).items():
                if is_trained or not self.stepped.steps:
                    yield place._replace(source=model.lines[place]), f"{model.name} is in training mode", count
                    break

    def clear(self) -> None:
        """Forgets the runs."""
        self._models.clear()
        self.stepped = Stepped()


@dataclasses.dataclass
class _Runs:
    outermost: weakref.ref[Any]
    name: str  # of its class
    optimizers: int = 0  # that had stepped when the next was found out
    is_trained: bool = False
    before: dict[Place, int] = dataclasses.field(default_factory=dict)  # the first step: runs
    after: dict[Place, int] = dataclasses.field(default_factory=dict)
    lines: dict[Place, str] = dataclasses.field(default_factory=dict)  # that call the model


class InEvaluation(Rule):
    """Base of rules about operators that run in training mode where autograd does not record."""

    fix = "call model.eval() before evaluation, and model.train() after it"

    def mode_of(self, context: OpContext) -> str:
        """The operator's input that is not zero in training; "" if it computes the same in both modes."""
        raise NotImplementedError

    def begin(self) -> None:
        self._runs = TrainingRuns()

    def look(self, context: OpContext) -> None:
        mode = self.mode_of(context)
        if mode and self._runs.wants():
            context.insert_before_op(self._on_run, inputs=[mode], differentiable=True, place=Place.of(context))

    def _on_run(self, trains: float, place: Place) -> None:
        if trains and not records():
            self._runs.add(place)

    def before_step(self, step: Step) -> None:
        self._runs.stepped.add(step)

    def at_end(self, ended_well: bool) -> None:
        for place, evidence, count in self._runs.mistakes():
            self.found(place, evidence, count=count)
        self._runs.clear()
