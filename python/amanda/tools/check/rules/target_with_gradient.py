"""target-with-gradient."""

from __future__ import annotations

from typing import Any

from amanda import OpContext

from ..gradients import name_of
from ..graph import kind, passed
from ..losses import LOSSES
from ..rule import Rule, operands

_REGRESSIONS = ("mse_loss", "smooth_l1_loss", "huber_loss")
_PASSED = ("Add", "Sub", "Rsub", "Mul", "Neg", "Where", "Max", "Amax", "Minimum", "Maximum", "Gather", "Index", "Mean",
           "Stack")  # fmt: skip
_ADDS, _SCALES, _CHOOSES = ("Add", "Sub", "Rsub"), ("Mul",), ("Max", "Amax", "Gather", "Index")
_MOST = 64  # nodes


class TargetWithGradient(Rule):
    """Reinforcement learning computes the target of a value by the network that is trained, as in
    ``reward + gamma * network(next_state).max(1)[0]``, and the target keeps its gradient. The loss then also moves the
    target to the prediction: values hardly learn from rewards. Often the target network is the same object as the network.

    It reports a regression whose prediction and target are results of one layer, if the target is such a result times
    something, plus something without a gradient. An action must be chosen, by `max` in the target, or `gather` in one of
    both. A target network of its own, which no optimizer has, is no finding.
    """

    name = "target-with-gradient"
    sentence = "the loss also trains the target"
    fix = "compute the target in torch.no_grad(), by a copy of the network: target = copy.deepcopy(network)"
    ops = LOSSES
    bad = """
        value = model(x).gather(1, labels[:, None]).squeeze(1)
        F.smooth_l1_loss(value, torch.randn(4) + 0.9 * model(x + 1).max(1)[0]).backward()
    """
    good = """
        value = model(x).gather(1, labels[:, None]).squeeze(1)
        with torch.no_grad():
            target = torch.randn(4) + 0.9 * model(x + 1).max(1)[0]
        F.smooth_l1_loss(value, target).backward()
        F.mse_loss(model(x), model(x + 1)).backward()  # two views of an example
        F.mse_loss(model(x), 0.9 * model(x + 1) + x[:, :1]).backward()  # an equation that the model is to fulfil
        F.mse_loss(model(x) * 2 + labels[:, None], model(x + 1) * 2 + labels[:, None]).backward()
    """

    def look(self, context: OpContext) -> None:
        given = operands(context)
        if context.op.__name__ not in _REGRESSIONS or not (
            given["self"].requires_grad and given["target"].requires_grad
        ):
            return
        for predicted, target in ((given["self"], given["target"]), (given["target"], given["self"])):
            weights, computed = _layers(target.grad_fn)
            if computed.issuperset(("added", "scaled")):
                own, own_computed = _layers(predicted.grad_fn)
                shared = [one for key, one in own.items() if key in weights]
                if shared and own_computed <= {"chosen"} and "chosen" in computed | own_computed:
                    self.found_in(context, f"prediction and target are results of {name_of(shared[0])}")
                    return


def _layers(node: Any) -> tuple[dict[int, Any], set[str]]:
    """The weights of the layers that values come from, by their ids; and how they were computed from these."""
    weights: dict[int, Any] = {}
    computed: set[str] = set()
    todo = [node]
    for _ in range(_MOST):
        if not todo:
            break
        node = passed(todo.pop())
        found = kind(node)
        following = [one for one, _ in node.next_functions] if node is not None else []
        if found in ("Addmm", "Mm", "Linear"):
            weights |= {id(one): one for one in map(_leaf, following) if one is not None and one.dim() > 1}
        elif found in _PASSED:
            if found in _ADDS and None in following:
                computed.add("added")
            if found in _SCALES and None in following:
                computed.add("scaled")
            if found in _CHOOSES:
                computed.add("chosen")
            todo += following
    return weights, computed


def _leaf(node: Any) -> Any:
    node = passed(node)
    return node.variable if node is not None and kind(node) == "torch::autograd::AccumulateGrad" else None
