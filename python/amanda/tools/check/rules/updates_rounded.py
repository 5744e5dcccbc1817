"""updates-rounded."""

from __future__ import annotations

import dataclasses
import weakref
from typing import Any

from amanda.toolkit import Place, own_work

from ..gradients import first
from ..rule import Rule, Step

LEAST = 4  # steps
SAMPLED = 4  # parameters
SAMPLE = 256  # elements of each
MOST = 0.75  # of the elements that have gradients


class UpdatesRounded(Rule):
    """Parameters in bfloat16 or float16 are trained with updates that are less than half of the distance to the next
    number of their type: they are rounded away, in each step again. Bfloat16 has 8 bits, so that a weight of 0.02 changes
    by 0.0001 or not at all, and a learning rate of 1e-5 does nothing.

    It compares elements of four parameters with those before the first step, after steps 4, 8, 16 and so on. It reports
    an optimizer if in the last comparison most elements that have gradients are as they were: optimizers that round at
    random, or keep what was rounded away, change them.
    """

    name = "updates-rounded"
    sentence = "updates are too small for the type of the parameters, and are rounded away"
    fix = "keep the parameters in float32, and compute in torch.autocast; or an optimizer that rounds at random"
    bad = """
        model.bfloat16()
        optimizer = torch.optim.AdamW(model.parameters(), 1e-6)
        for _ in range(4):
            optimizer.zero_grad()
            F.cross_entropy(model(x.bfloat16()), labels).backward()
            optimizer.step()
    """
    good = """
        model.bfloat16()
        optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
        for _ in range(4):
            optimizer.zero_grad()
            F.cross_entropy(model(x.bfloat16()), labels).backward()
            optimizer.step()
    """

    def begin(self) -> None:
        self._known: weakref.WeakKeyDictionary[Any, _Compared] = weakref.WeakKeyDictionary()
        self._all: list[_Compared] = []  # also of optimizers that are gone

    def before_step(self, step: Step) -> None:
        if step.number:
            return
        half = [one for one in step.parameters if _is_half(one)]
        chosen = half[:: max(1, len(half) // SAMPLED)][:SAMPLED]
        if chosen:
            known = self._known[step.optimizer] = _Compared(
                [_Sample(weakref.ref(one), self._first(one)) for one in chosen]
            )
            self._all.append(known)

    def after_step(self, step: Step) -> None:
        known, steps = self._known.get(step.optimizer), step.number + 1
        if known is None or steps < LEAST or steps & (steps - 1):
            return
        known.place, known.steps, known.trained, known.same = step.place, steps, 0, 0
        rates = [float(group.get("lr", 0)) for group in step.optimizer.param_groups]
        for sample in known.samples if all(rates) else ():
            parameter = sample.parameter()
            gradient = getattr(parameter, "grad", None)
            now, slope = self._first(parameter), self._first(gradient)
            if sample.values is not None and now is not None and slope is not None:
                with own_work():
                    is_trained = slope != 0
                    known.trained += int(is_trained.sum())
                    known.same += int((is_trained & (now == sample.values)).sum())
                    known.type = str(now.dtype).partition(".")[2]

    def _first(self, tensor: Any) -> Any:
        return None if tensor is None else self.read_quietly(tensor, lambda plain: first(plain, SAMPLE))

    def at_end(self, ended_well: bool) -> None:
        for known in self._all:
            if known.place is not None and known.trained and known.same > MOST * known.trained:
                what = f"{known.same} of {known.trained} elements in {known.type} that have gradients"
                self.found(known.place, f"{what} are after {known.steps} steps as before the first", count=known.steps)
        self.begin()


@dataclasses.dataclass
class _Sample:
    parameter: weakref.ref[Any]
    values: Any  # before the first step; None if they cannot be read


@dataclasses.dataclass
class _Compared:
    samples: list[_Sample]
    place: Place | None = None
    steps: int = 0  # before the last comparison
    trained: int = 0  # elements with gradients
    same: int = 0  # those of them that are as before the first step
    type: str = ""


def _is_half(parameter: Any) -> bool:
    import torch

    return parameter.requires_grad and parameter.dtype in (torch.bfloat16, torch.float16) and parameter.numel() > 0
