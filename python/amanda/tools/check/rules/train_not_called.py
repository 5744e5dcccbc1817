"""train-not-called."""

from __future__ import annotations

import copy
import functools
import weakref
from typing import Any

from amanda import OpContext, ops
from amanda.toolkit.evidence import counted

from ..modes import running
from ..rule import Rule, Step


class TrainNotCalled(Rule):
    """A class has a `train` of its own, which freezes parameters or keeps normalization in evaluation mode, as for
    `frozen_stages`. The program trains the model and has not called it, so that all is trained.

    It calls `train` of a copy of the model that has no elements, once, at the first step, and compares. It says nothing
    about what `train` would unfreeze: the program may have frozen more after the call.
    """

    name = "train-not-called"
    sentence = "the model's own train() would freeze what is trained"
    fix = "call model.train() before the training loop"
    is_advice = True
    ops = (*ops.linear_like, *ops.convolution)
    only_first_steps = True
    bad = """
        class Staged(nn.Sequential):
            def train(self, mode=True):
                self[0].requires_grad_(False)
                return super().train(mode)
        model = Staged(*model)
        F.cross_entropy(model(x), labels).backward()
        optimizer.step()
    """
    good = """
        class Staged(nn.Sequential):
            def train(self, mode=True):
                self[0].requires_grad_(False)
                return super().train(mode)
        model = Staged(*model)
        model.train()
        model[2].bias.requires_grad_(False)
        F.cross_entropy(model(x), labels).backward()
        optimizer.step()
    """

    def begin(self) -> None:
        self._models: weakref.WeakSet[Any] = weakref.WeakSet()  # outermost modules with a `train` of their own inside

    def look(self, context: OpContext) -> None:
        modules = running()
        if modules and modules[-1] not in self._models and any(map(_has_own, modules[-1].modules())):
            self._models.add(modules[-1])

    def after_step(self, step: Step) -> None:
        trained = {id(one) for one in step.parameters if one.grad is not None}
        for model in list(self._models):
            own = [one for one in model.parameters() if id(one) in trained]
            if own and model.training:
                self._models.discard(model)
                changed = self.read(own[0].detach(), functools.partial(_would_freeze, model))
                if changed:
                    self.found(step.place, changed)


def _has_own(module: Any) -> bool:
    defined = next(one for one in type(module).__mro__ if "train" in vars(one))
    return not defined.__module__.startswith("torch.")


def _would_freeze(model: Any, _: Any) -> str:
    """Names what `train` of a copy freezes; "" if nothing, or if the model cannot be copied."""
    import torch

    def without_elements(tensor: Any) -> Any:
        empty = torch.empty_like(tensor, device="meta", requires_grad=False)
        is_parameter = isinstance(tensor, torch.nn.Parameter)
        return torch.nn.Parameter(empty, requires_grad=tensor.requires_grad) if is_parameter else empty

    try:
        known = {id(one): without_elements(one) for one in (*model.parameters(), *model.buffers())}
        other = copy.deepcopy(model, known)
        other.train()
    except Exception:  # of the program's own code, which was not made for a copy
        return ""
    pairs = zip(model.named_parameters(), other.parameters(), strict=False)
    frozen = [name for (name, one), after in pairs if one.requires_grad and not after.requires_grad]
    modules = zip(model.named_modules(), other.modules(), strict=False)
    fixed = [name for (name, one), after in modules if one.training and not after.training]
    parts = []
    if frozen:
        parts.append(f"{type(model).__name__}.train() would freeze {counted(len(frozen), 'parameter')}, as {frozen[0]}")
    if fixed:
        parts.append(f"{type(model).__name__}.train() would put {fixed[0]} in evaluation mode")
    return "; ".join(parts)
