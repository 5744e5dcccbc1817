"""weight-decay-on-norms."""

from __future__ import annotations

from ..gradients import names
from ..rule import Rule, Step

LISTED = 3


class WeightDecayOnNorms(Rule):
    """An optimizer decays biases and the weights of normalization layers, which have one axis: common recipes decay only
    matrices. It looks at parameters with fewer than two axes in groups with weight decay, at the first step."""

    name = "weight-decay-on-norms"
    sentence = "biases and weights of normalizations are decayed"
    fix = "put parameters with fewer than two axes into a group with weight_decay=0"
    is_advice = True
    only_first_steps = True
    bad = """
        optimizer = torch.optim.AdamW(model.parameters(), 0.1, weight_decay=0.1)
        F.cross_entropy(model(x), labels).backward()
        optimizer.step()
    """
    good = """
        flat = [one for one in model.parameters() if one.ndim < 2]
        matrices = {"params": [one for one in model.parameters() if one.ndim >= 2], "weight_decay": 0.1}
        optimizer = torch.optim.AdamW([matrices, {"params": flat, "weight_decay": 0.0}], 0.1)
        F.cross_entropy(model(x), labels).backward()
        optimizer.step()
    """

    def before_step(self, step: Step) -> None:
        groups = [group for group in step.optimizer.param_groups if group.get("weight_decay")]
        flat = [one for group in groups for one in group["params"] if one.ndim < 2 and one.requires_grad]
        if flat:
            self.found(step.place, f"{len(flat)} parameters have one axis: {names(flat, LISTED)}")
