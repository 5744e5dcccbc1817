"""layers-are-one."""

from __future__ import annotations

import collections
from collections.abc import Iterator
from typing import Any

from ..gradients import few
from ..rule import Rule, Step

MOST = 2  # optimizers whose models are looked at


class LayersAreOne(Rule):
    """A list of layers has the same module several times, as ``nn.ModuleList([Layer()] * 6)``: there is one layer, which
    runs six times, and has a sixth of the parameters.

    It looks at `nn.ModuleList` and `nn.Sequential` in the models of the first optimizers that step. The module must have
    parameters, and take what it gives: heads that share their weights, as those of DETR, are no finding. A layer that the
    program calls in a loop is none either. Some models share the weights of all layers on purpose.
    """

    name = "layers-are-one"
    sentence = "several layers of a list are one module"
    fix = "make each of them: nn.ModuleList([Layer() for _ in range(6)])"
    is_advice = True
    only_first_steps = True
    bad = """
        model = nn.Sequential(nn.Linear(4, 3), *[nn.Linear(3, 3)] * 4)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        F.cross_entropy(model(x), labels).backward()
        optimizer.step()
    """
    good = """
        heads = nn.ModuleList([nn.Linear(4, 3)] * 4)
        model = nn.Sequential(nn.Linear(4, 4), *[nn.ReLU()] * 2, *(nn.Linear(4, 4) for _ in range(4)))
        optimizer = torch.optim.SGD([*model.parameters(), *heads.parameters()], 0.1)
        sum(F.cross_entropy(head(model(x)), labels) for head in heads).backward()
        optimizer.step()
    """

    def begin(self) -> None:
        self._optimizers = 0

    def before_step(self, step: Step) -> None:
        if self._optimizers == MOST:
            return
        self._optimizers += 1
        found = [text for model in step.models for text in _repeated(model)]
        if found:
            self.found(step.place, few(found))


def _repeated(model: Any) -> Iterator[str]:
    from torch import nn

    for name, module in model.named_modules():
        if isinstance(module, (nn.ModuleList, nn.Sequential)):
            for layer, count in collections.Counter(module).items():
                if count > 1 and _takes_what_it_gives(layer):
                    yield f"{name or type(module).__name__} has one {type(layer).__name__} {count} times"


def _takes_what_it_gives(layer: Any) -> bool:
    """The first weight has as many inputs as the last one has outputs."""
    weights = [one for one in layer.parameters() if one.dim() > 1]
    return bool(weights) and weights[0].shape[1] == weights[-1].shape[0]
