"""dropout-in-evaluation."""

from __future__ import annotations

from amanda import OpContext
from amanda.toolkit import Place

from ..modes import TrainingRuns, records
from ..rule import Rule, Step, operands


class DropoutInEvaluation(Rule):
    """A model runs without gradients, in training mode, and its dropout is on: evaluation without `model.eval()`.

    In a program that trains, it looks at the models that are trained, from their first step on. It says nothing where the
    outermost module is in evaluation mode and only dropout is on (Monte Carlo dropout), in checkpointed regions, and
    about models that are never trained there, such as teachers.
    """

    name = "dropout-in-evaluation"
    sentence = "dropout is on where no gradient is recorded"
    fix = "call model.eval() before evaluation, and model.train() after it"
    ops = ("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout")
    bad = """
        model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3))
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(2):
            optimizer.zero_grad()
            F.cross_entropy(model(x), labels).backward()
            optimizer.step()
            with torch.no_grad():
                model(x).argmax(-1)
    """
    good = """
        model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3))
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(2):
            model.train()
            optimizer.zero_grad()
            F.cross_entropy(model(x), labels).backward()
            optimizer.step()
            model.eval()
            with torch.no_grad():
                model(x).argmax(-1)
    """

    def begin(self) -> None:
        self._runs = TrainingRuns()

    def look(self, context: OpContext) -> None:
        if operands(context)["p"] and self._runs.wants():
            context.insert_before_op(self._on_run, inputs=["train"], differentiable=True, place=Place.of(context))

    def _on_run(self, train: bool, place: Place) -> None:
        if train and not records():
            self._runs.add(place)

    def before_step(self, step: Step) -> None:
        self._runs.stepped.add(step)

    def at_end(self, ended_well: bool) -> None:
        for place, evidence, count in self._runs.mistakes():
            self.found(place, evidence, count=count)
        self._runs.clear()
