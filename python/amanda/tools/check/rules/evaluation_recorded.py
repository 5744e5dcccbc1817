"""evaluation-recorded."""

from __future__ import annotations

import dataclasses
import weakref
from typing import Any

from amanda import OpContext, ops
from amanda.toolkit import Place

from ..modes import Stepped, called_at, records, running
from ..rule import Rule, Step

LEAST = 2  # runs


@dataclasses.dataclass(eq=False)
class _Model:
    module: weakref.ref[Any]  # in which the operator is that is looked at: the first one of the model
    name: str
    place: Place | None = None
    pending: int = 0  # runs in evaluation mode of which a graph was recorded, since the last one in training mode
    unused: int = 0  # those before that
    is_used: bool = False  # a backward pass has followed on such runs
    is_trained: bool = False


class EvaluationRecorded(Rule):
    """A model that is trained is evaluated in evaluation mode, autograd records the evaluation, and no backward pass
    follows: `torch.no_grad` is missing. Results keep the graph, and with it the activations of all layers: evaluation then
    needs as much memory as training, or more, where results or losses of all batches are kept.

    It says nothing about models for which `backward()` has followed on such a run, as for the gradients of an input.
    """

    name = "evaluation-recorded"
    sentence = "autograd records an evaluation, and nothing uses it"
    fix = "run the evaluation in torch.no_grad() or torch.inference_mode(); model.eval() does not turn autograd off"
    is_advice = True
    counts_backward = True
    ops = (*ops.linear_like, *ops.convolution, "embedding", "layer_norm", "batch_norm")
    bad = """
        for _ in range(2):
            model.train()
            optimizer.zero_grad()
            F.cross_entropy(model(x), labels).backward()
            optimizer.step()
            model.eval()
            right = (model(x).argmax(1) == labels).sum()
    """
    good = """
        for _ in range(3):
            model.train()
            optimizer.zero_grad()
            F.cross_entropy(model(x), labels).backward()
            optimizer.step()
            model.eval()
            with torch.no_grad():
                right = (model(x).argmax(1) == labels).sum()
        other = nn.Sequential(nn.Linear(4, 3)).eval()
        for _ in range(3):
            other(x)  # is never trained
        for _ in range(2):
            model.train()
            optimizer.zero_grad()
            F.cross_entropy(model(x), labels).backward()
            optimizer.step()
            model.eval()
            model(x.clone().requires_grad_()).sum().backward()  # which inputs matter
    """

    def begin(self) -> None:
        self._models: dict[int, _Model] = {}  # by the outermost module's id
        self._stepped = Stepped()

    def look(self, context: OpContext) -> None:
        modules = running()
        if not modules:
            return
        model = self._models.get(id(modules[-1]))
        if model is None:
            model = self._models[id(modules[-1])] = _Model(weakref.ref(modules[0]), type(modules[-1]).__name__)
        if model.module() is modules[0]:
            context.insert_before_op(self._on_run, inputs=[], differentiable=True, model=model, place=Place.of(context))

    def _on_run(self, model: _Model, place: Place) -> None:
        modules = running()
        if not modules:
            return
        if modules[-1].training:
            model.unused, model.pending = model.unused + model.pending, 0
        elif records() and not modules[0].training:
            model.is_trained = model.is_trained or self._stepped.trains(modules[-1])
            model.pending += model.is_trained
            model.place = model.place or place._replace(source=called_at())

    def before_backward(self) -> None:
        for model in self._models.values():
            model.is_used, model.pending = model.is_used or model.pending > 0, 0

    def after_step(self, step: Step) -> None:
        self._stepped.add(step)

    def at_end(self, ended_well: bool) -> None:
        for model in self._models.values():
            runs = model.unused + model.pending
            if model.place is not None and runs >= LEAST and not model.is_used:
                self.found(
                    model.place, f"{model.name} is in evaluation mode, and its gradients are recorded", count=runs
                )
        self._models.clear()
