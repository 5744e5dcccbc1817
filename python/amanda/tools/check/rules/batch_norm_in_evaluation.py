"""batch-norm-in-evaluation."""

from __future__ import annotations

from amanda import OpContext

from ..modes import InEvaluation
from ..rule import operands


class BatchNormInEvaluation(InEvaluation):
    """A model runs without gradients, in training mode, and its batch normalization takes the statistics of the batch.
    Results then depend on the other examples of the batch, and the running statistics learn from data of the evaluation.

    In a program that trains, it looks at the models that are trained, from their first step on. It says nothing in
    `torch.optim.swa_utils.update_bn`, in checkpointed regions, and about models that are never trained there, such as
    momentum encoders.
    """

    name = "batch-norm-in-evaluation"
    sentence = "batch normalization learns where no gradient is recorded"
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

    def mode_of(self, context: OpContext) -> str:
        given = operands(context)
        return "training" if given.get("running_mean") is not None and "training" in given else ""
