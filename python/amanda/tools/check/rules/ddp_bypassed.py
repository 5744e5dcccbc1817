"""ddp-bypassed."""

from __future__ import annotations

import sys
import weakref
from typing import Any

from amanda import OpContext, ops
from amanda.toolkit import Place

from ..modes import records, running
from ..rule import Rule, Step


class DDPBypassed(Rule):
    """A module is wrapped by `DistributedDataParallel`, and the training calls the module itself: gradients are not
    averaged, and the weights of the ranks part. Evaluation by the module itself is right, and no finding."""

    name = "ddp-bypassed"
    sentence = "training bypasses DistributedDataParallel"
    fix = "call what DistributedDataParallel returned, not the module that it was given"
    ops = (*ops.linear_like, *ops.convolution, "embedding")
    bad = """
        with one_process():
            ddp = nn.parallel.DistributedDataParallel(model)
            optimizer.zero_grad()
            F.cross_entropy(model(x), labels).backward()
            optimizer.step()
    """
    good = """
        with one_process():
            ddp = nn.parallel.DistributedDataParallel(model)
            optimizer.zero_grad()
            F.cross_entropy(ddp(x), labels).backward()
            optimizer.step()
            with torch.no_grad():
                model(x)
    """

    def begin(self) -> None:
        self._raw: dict[int, tuple[weakref.ref[Any], Place]] = {}  # outermost modules that ran, since the last step
        self._wrapped: weakref.WeakSet[Any] = weakref.WeakSet()  # modules that ran in a wrapper, since the last step
        self._asked: weakref.WeakSet[Any] = weakref.WeakSet()  # outermost modules

    def look(self, context: OpContext) -> None:
        distributed = sys.modules.get("torch.distributed")
        modules = running()
        if distributed is None or not distributed.is_available() or not distributed.is_initialized() or not modules:
            return
        if modules[-1] not in self._asked:  # one operator of each is enough
            self._asked.add(modules[-1])
            context.insert_before_op(self._on_run, inputs=[], differentiable=True, place=Place.of(context))

    def _on_run(self, place: Place) -> None:
        modules = running()
        if not modules or not records():
            return
        if type(modules[-1]).__name__ == "DistributedDataParallel":
            self._wrapped.add(modules[-1].module)
        else:
            self._raw[id(modules[-1])] = weakref.ref(modules[-1]), place

    def after_step(self, step: Step) -> None:
        raw, wrapped = self._raw, set(self._wrapped)
        self._raw = {}
        self._wrapped.clear()
        if not raw:
            return
        own = set(map(id, step.parameters))
        inside = {id(one) for one in _wrapped_modules()}
        for key, (reference, place) in raw.items():
            module = reference()
            if module is None or module in wrapped or key not in inside:
                continue
            if any(id(one) in own and one.grad is not None for one in module.parameters()):
                name = type(module).__name__
                self.found(place, f"{name} runs itself, and its optimizer steps; the gradients are of this rank alone")


def _wrapped_modules() -> list[Any]:
    import gc

    from torch.nn.parallel import DistributedDataParallel

    return [one.module for one in gc.get_objects() if type(one) is DistributedDataParallel]
