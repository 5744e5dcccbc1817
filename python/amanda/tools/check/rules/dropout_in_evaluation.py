"""dropout-in-evaluation."""

from __future__ import annotations

from amanda import OpContext

from ..modes import InEvaluation
from ..rule import operands


class DropoutInEvaluation(InEvaluation):
    """A model runs without gradients, in training mode, and its dropout is on: evaluation without `model.eval()`.

    In a program that trains, it looks at the models that are trained, from their first step on. It says nothing where the
    outermost module is in evaluation mode and only dropout is on (Monte Carlo dropout), in checkpointed regions, and
    about models that are never trained there, such as teachers.
    """

    name = "dropout-in-evaluation"
    sentence = "dropout is on where no gradient is recorded"
    ops = ("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout", "scaled_dot_product_attention")
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

    def mode_of(self, context: OpContext) -> str:
        given = operands(context)
        if "dropout_p" in given:
            return "dropout_p"  # modules give 0 in evaluation
        return "train" if given["p"] else ""
