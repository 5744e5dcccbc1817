"""freeze-without-effect."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from amanda.toolkit.evidence import counted

from ..gradients import few
from ..rule import Rule, Step

_MISSPELT = ("require_grad", "require_grads", "requires_grads", "required_grad")
MOST = 2  # optimizers whose models are looked at


class FreezeWithoutEffect(Rule):
    """A layer is to be frozen, by ``layer.requires_grad = False``. That makes a new attribute of the module, and its
    parameters are trained on. The same happens where the name is misspelt, as in ``weight.require_grad = False``.

    It looks at the modules of the first optimizers that step, and reports parameters that have a gradient.
    """

    name = "freeze-without-effect"
    sentence = "a layer that was to be frozen is trained"
    fix = "layer.requires_grad_(False), or requires_grad = False for each of its parameters"
    only_first_steps = True
    bad = """
        model[0].requires_grad = False
        F.cross_entropy(model(x), labels).backward()
        optimizer.step()
    """
    good = """
        model[0].requires_grad_(False)
        F.cross_entropy(model(x), labels).backward()
        optimizer.step()
    """

    def begin(self) -> None:
        self._optimizers = 0

    def before_step(self, step: Step) -> None:
        if self._optimizers == MOST or step.has_closure:
            return
        self._optimizers += 1
        trained = {id(one) for one in step.parameters if one.requires_grad and one.grad is not None}
        found = [text for model in step.models for text in _without_effect(model, trained)]
        if found:
            self.found(step.place, few(found))


def _without_effect(model: Any, trained: set[int]) -> Iterator[str]:
    for name, module in model.named_modules():
        if vars(module).get("requires_grad") is False:
            count = sum(id(one) in trained for one in module.parameters())
            if count:
                what = f"{name or type(module).__name__}.requires_grad is an attribute of the module"
                yield f"{what}, of which {counted(count, 'parameter')} {'is' if count == 1 else 'are'} trained"
    for name, parameter in model.named_parameters():
        wrong = next((one for one in _MISSPELT if vars(parameter).get(one) is False), None)
        if wrong and id(parameter) in trained:
            yield f"{name}.{wrong} is an attribute without a meaning, and {name} is trained"
