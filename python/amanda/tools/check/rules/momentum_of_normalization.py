"""momentum-of-normalization."""

from __future__ import annotations

from amanda import OpContext

from ..modes import running
from ..rule import Rule, operands

LEAST, MOST = 0.9, 1.0


class MomentumOfNormalization(Rule):
    """Batch normalization has a momentum of 0.9 or more. In Keras and in papers, that is the share of the old statistics;
    in PyTorch it is the share of the new batch, by default 0.1. The statistics are then those of the last batch, and
    results of the evaluation differ from step to step.

    A momentum of 1 or None is no finding: both are used on purpose.
    """

    name = "momentum-of-normalization"
    sentence = "batch normalization forgets all batches but the last"
    fix = "give nn.BatchNorm2d 1 - momentum: 0.01 for the 0.99 of Keras"
    ops = ("batch_norm", "_batch_norm_with_update")
    bad = """
        model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8, momentum=0.99), nn.Linear(8, 3))
        F.cross_entropy(model(x), labels).backward()
    """
    good = """
        model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8, momentum=0.01), nn.BatchNorm1d(8, momentum=None))
        F.cross_entropy(model(x), labels).backward()
    """

    def look(self, context: OpContext) -> None:
        given = operands(context)
        learns = given.get("training", True) and given.get("running_mean") is not None
        momentum = given.get("momentum")
        is_own = all(getattr(one, "momentum", momentum) == momentum for one in running()[:1])  # None counts batches
        if learns and is_own and isinstance(momentum, float) and LEAST <= momentum < MOST:
            what = f"momentum is {momentum:g}: {1 - momentum:.2g} of the statistics are older than this batch"
            self.found_in(context, what)
