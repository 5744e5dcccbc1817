"""teacher-in-training."""

from __future__ import annotations

import dataclasses
import weakref
from typing import Any

from amanda import OpContext
from amanda.toolkit import Place

from ..modes import TrainingRuns, called_at, is_meant, records, running
from ..rule import Rule, Step, operands

LEAST = 2  # steps of optimizers before which it runs
SAMPLED, ELEMENTS = 4, 64  # parameters of which elements are compared


class TeacherInTraining(Rule):
    """A model that nothing trains runs between the steps of an optimizer, without gradients and in training mode: the
    teacher of a distillation, or an encoder that is fixed. Its dropout is on, so that its results are random, or its batch
    normalization takes the statistics of the batch, and learns from it.

    Its weights must stay as they are: momentum encoders, targets and averaged models are no finding. It compares some
    elements of four parameters. Nor are parts of a module that is trained, such as a frozen layer, or a frozen model that
    runs outside of `torch.no_grad`: its dropout may be meant for what is trained on its results.
    """

    name = "teacher-in-training"
    sentence = "a model that nothing trains is in training mode"
    fix = "call teacher.eval() once, before the training"
    ops = ("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout", "scaled_dot_product_attention",
           "batch_norm", "_batch_norm_with_update")  # fmt: skip
    bad = """
        teacher = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3))
        for _ in range(4):
            optimizer.zero_grad()
            with torch.no_grad():
                target = teacher(x).softmax(-1)
            F.kl_div(model(x).log_softmax(-1), target, reduction="batchmean").backward()
            optimizer.step()
    """
    good = """
        teacher = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3)).eval()
        for _ in range(4):
            optimizer.zero_grad()
            with torch.no_grad():
                target = teacher(x).softmax(-1)
            F.kl_div(model(x).log_softmax(-1), target, reduction="batchmean").backward()
            optimizer.step()
    """

    def begin(self) -> None:
        self._teachers: dict[int, _Teacher] = {}  # by the module's id
        self._runs = TrainingRuns()  # knows one operator for each model, and what was stepped

    def look(self, context: OpContext) -> None:
        given = operands(context)
        if "dropout_p" in given:
            mode = "dropout_p"  # modules give 0 in evaluation
        elif "p" in given:
            mode = "train" if given["p"] else ""
        else:
            mode = "training" if "training" in given and given.get("running_mean") is not None else ""
        if mode and self._runs.wants():
            what = "batch normalization learns" if mode == "training" else "dropout is on"
            context.insert_before_op(
                self._on_run, inputs=[mode], differentiable=True, place=Place.of(context), what=what
            )

    def _on_run(self, trains: float, place: Place, what: str) -> None:
        modules = running()
        if (
            not trains
            or not modules
            or not self._runs.stepped.steps
            or not (modules[0].training and modules[-1].training)
        ):
            return
        model = modules[-1]
        if records() or is_meant():
            return
        known = self._teachers.get(id(model))
        if known is None or known.model() is not model:
            values = self._values(model)
            if not values or self._runs.stepped.trains(model):
                return
            place = place._replace(source=called_at())
            known = self._teachers[id(model)] = _Teacher(weakref.ref(model), type(model).__name__, place, what, values)
        if known.step == self._runs.stepped.steps:
            return
        known.step = self._runs.stepped.steps
        known.runs += 1
        if known.runs & (known.runs - 1) == 0 and known.runs > 1 and not known.is_written:
            known.is_written = self._values(model) != known.values

    def _values(self, model: Any) -> list[Any]:
        parameters = [one for one in model.parameters() if one.is_floating_point() and one.numel()]
        chosen = parameters[:: max(1, len(parameters) // SAMPLED)][:SAMPLED]
        found = [self.read(one.detach(), lambda plain: plain.reshape(-1)[:ELEMENTS].tolist()) for one in chosen]
        return [one for one in found if one is not None]

    def before_step(self, step: Step) -> None:
        self._runs.stepped.add(step)
        if step.number == 0:
            for known in self._teachers.values():
                model = known.model()
                known.is_trained = known.is_trained or (model is not None and self._runs.stepped.trains(model))

    def at_end(self, ended_well: bool) -> None:
        for known in self._teachers.values():
            if known.runs >= LEAST and not (known.is_written or known.is_trained):
                evidence = f"{known.name} has the weights that it began with, and {known.what}"
                self.found(known.place, evidence, count=known.runs)
        self.begin()


@dataclasses.dataclass
class _Teacher:
    model: weakref.ref[Any]
    name: str  # of its class
    place: Place
    what: str
    values: list[Any]  # elements of its parameters in the first run
    step: int = -1  # the number of steps before its last run
    runs: int = 0  # with another number of steps before them
    is_trained: bool = False
    is_written: bool = False
