"""epoch-not-set."""

from __future__ import annotations

import dataclasses
import weakref
from typing import Any

from amanda.toolkit import Place

from ..rule import Pass, Rule, Step


class EpochNotSet(Rule):
    """A `DistributedSampler` shuffles by its seed and the number of its epoch, and the program does not set that number.
    All epochs go over the data in the same order, and each rank sees the same part of them.

    It reports a sampler with ``shuffle=True`` of which two passes had the same number, if an optimizer stepped in both.
    """

    name = "epoch-not-set"
    sentence = "each epoch goes over the data in the same order"
    fix = "call sampler.set_epoch(epoch) before each epoch"
    bad = """
        data = torch.utils.data.TensorDataset(torch.randn(8, 4))
        sampler = torch.utils.data.DistributedSampler(data, 1, 0)
        loader = torch.utils.data.DataLoader(data, 4, sampler=sampler)
        for epoch in range(3):
            for (batch,) in loader:
                optimizer.zero_grad()
                F.cross_entropy(model(batch), labels).backward()
                optimizer.step()
    """
    good = """
        data = torch.utils.data.TensorDataset(torch.randn(8, 4))
        sampler = torch.utils.data.DistributedSampler(data, 1, 0)
        loader = torch.utils.data.DataLoader(data, 4, sampler=sampler)
        for epoch in range(3):
            sampler.set_epoch(epoch)
            for (batch,) in loader:
                optimizer.zero_grad()
                F.cross_entropy(model(batch), labels).backward()
                optimizer.step()
            for (batch,) in loader:  # how well it has learned
                model(batch)
    """

    def begin(self) -> None:
        self._steps = 0
        self._samplers: weakref.WeakKeyDictionary[Any, _Passes] = weakref.WeakKeyDictionary()
        self._all: list[_Passes] = []  # also of samplers that are gone

    def before_step(self, step: Step) -> None:
        self._steps += 1

    def on_pass(self, begun: Pass) -> None:
        from torch.utils.data.distributed import DistributedSampler

        batches = getattr(begun.loader, "batch_sampler", None)
        both = (getattr(begun.loader, "sampler", None), getattr(batches, "sampler", None))
        sampler = next((one for one in both if isinstance(one, DistributedSampler)), None)
        if sampler is None or not sampler.shuffle:
            return
        if sampler not in self._samplers:
            self._samplers[sampler] = _Passes(begun.place)
            self._all.append(self._samplers[sampler])
        self._samplers[sampler].next(sampler.epoch, self._steps)

    def at_end(self, ended_well: bool) -> None:
        for one in self._all:
            one.next(None, self._steps)
            epoch, count = max(one.trained.items(), key=lambda pair: pair[1], default=(0, 0))
            if count > 1:
                self.found(one.place, f"the sampler had the epoch {epoch} in {count} passes that trained", count=count)
        self.begin()


@dataclasses.dataclass
class _Passes:
    place: Place
    epoch: int | None = None  # of the pass that runs
    steps: int = 0  # of all optimizers, when it began
    trained: dict[int, int] = dataclasses.field(default_factory=dict)  # by epoch: passes in which an optimizer stepped

    def next(self, epoch: int | None, steps: int) -> None:
        if self.epoch is not None and steps > self.steps:
            self.trained[self.epoch] = self.trained.get(self.epoch, 0) + 1
        self.epoch, self.steps = epoch, steps
