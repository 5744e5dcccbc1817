"""batch-norm-in-evaluation."""

from __future__ import annotations

from amanda import OpContext
from amanda.toolkit import Place

from ..modes import TrainingRuns, records
from ..rule import Rule, Step, operands


class BatchNormInEvaluation(Rule):
    """A model runs without gradients, in training mode, and its batch normalization takes the statistics of the batch.
    Results then depend on the other examples of the batch, and the running statistics learn from data of the evaluation.

    In a program that trains, it looks at the models that are trained, from their first step on. It says nothing in
    `torch.optim.swa_utils.update_bn`, in checkpointed regions, and about models that are never trained there, such as
    momentum encoders.
    """

    name = "batch-norm-in-evaluation"
    sentence = "batch normalization learns where no gradient is recorded"
    fix = "call model.eval() before evaluation, and model.train() after it"
    ops = ("batch_norm", "_batch_norm_with_update")
    bad = """
        model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
        with torch.no_grad():
            model(x).argmax(-1)
    """
    good = """
        model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)).eval()
        with torch.no_grad():
            model(x).argmax(-1)
    """

    def begin(self) -> None:
        self._runs = TrainingRuns()

    def look(self, context: OpContext) -> None:
        given = operands(context)
        if given.get("running_mean") is not None and "training" in given and self._runs.wants():
            context.insert_before_op(self._on_run, inputs=["training"], differentiable=True, place=Place.of(context))

    def _on_run(self, training: bool, place: Place) -> None:
        if training and not records():
            self._runs.add(place)

    def before_step(self, step: Step) -> None:
        self._runs.stepped.add(step)

    def at_end(self, ended_well: bool) -> None:
        for place, evidence, count in self._runs.mistakes():
            self.found(place, evidence, count=count)
        self._runs.clear()
