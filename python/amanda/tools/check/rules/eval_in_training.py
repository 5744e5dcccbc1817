"""eval-in-training."""

from __future__ import annotations

import weakref
from typing import Any

from amanda import OpContext
from amanda.toolkit import Place

from ..modes import Stepped, records, running
from ..rule import Rule, Step, operands


class EvalInTraining(Rule):
    """An optimizer trains a model that is in evaluation mode: its dropout does nothing, its batch normalization learns no
    statistics. Models of `from_pretrained` begin in this mode.

    It says nothing if only a part is in evaluation mode, as frozen batch normalization is; if the model also ran in
    training mode since the last step; or if the optimizer has none of its parameters. Seen in two steps in a row.
    """

    name = "eval-in-training"
    sentence = "a model is trained in evaluation mode"
    fix = "call model.train() before the training loop, and after each evaluation"
    ops = ("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout", "batch_norm")
    bad = """
        model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3)).eval()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(3):
            optimizer.zero_grad()
            F.cross_entropy(model(x), labels).backward()
            optimizer.step()
    """
    good = """
        model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(3):
            model.train()
            model[1].eval()  # frozen statistics
            optimizer.zero_grad()
            F.cross_entropy(model(x), labels).backward()
            optimizer.step()
            model.eval()
            F.cross_entropy(model(x), labels)
    """

    def begin(self) -> None:
        self._stepped = Stepped()
        self._in_eval: dict[int, tuple[weakref.ref[Any], Place]] = {}  # outermost modules, since the last step
        self._in_training = False  # a model ran in training mode, since the last step
        self._in_a_row: dict[int, int] = {}

    def look(self, context: OpContext) -> None:
        given, mode = operands(context), "training" if context.op.__name__ == "batch_norm" else "train"
        if given.get("p", 1) and (mode == "train" or given.get("running_mean") is not None):
            context.insert_before_op(self._on_run, inputs=[mode], differentiable=True, place=Place.of(context))

    def _on_run(self, trains: bool, place: Place) -> None:
        if trains:
            self._in_training = True
        elif not self._in_training and records():
            modules = running()
            if modules and not modules[0].training and not modules[-1].training:
                self._in_eval.setdefault(id(modules[-1]), (weakref.ref(modules[-1]), place))

    def before_step(self, step: Step) -> None:
        self._stepped.add(step)
        if not step.has_closure:
            self._judge()

    def after_step(self, step: Step) -> None:
        if step.has_closure:
            self._judge()

    def _judge(self) -> None:
        in_eval, self._in_eval = self._in_eval, {}
        if self._in_training:
            in_eval = {}
        self._in_training = False
        self._in_a_row = {key: self._in_a_row.get(key, 0) + 1 for key in in_eval}
        for key, (reference, place) in in_eval.items():
            module, count = reference(), self._in_a_row[key]
            if count > 1 and module is not None and self._stepped.trains(module):
                first = f"{type(module).__name__}.training is False when the optimizer steps"
                self.found(place, first, count=2 if count == 2 else 1)
