"""epoch-not-set."""

from __future__ import annotations

import dataclasses
import weakref
from typing import Any

from amanda.toolkit import Place

from ..rule import Pass, Rule, Step

LEAST = 2  # steps of a pass that trains


class EpochNotSet(Rule):
    """A `DistributedSampler` shuffles by its seed and the number of its epoch, and the program does not set that number.
    All epochs go over the data in the same order, and each rank sees the same part of them.

    It reports a sampler with ``shuffle=True`` of which two passes had the same number, if an optimizer stepped after two
    batches or more of both. A pass that only looks how well the model has learned is none of them.
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
        self._samplers: weakref.WeakKeyDictionary[Any, _Passes] = weakref.WeakKeyDictionary()
        self._all: list[_Passes] = []  # also of samplers that are gone

    def before_step(self, step: Step) -> None:
        for one in self._all:
            one.see_step()

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
        self._samplers[sampler].next(sampler.epoch, begun.iterator)

    def at_end(self, ended_well: bool) -> None:
        for one in self._all:
            one.next(None, None)
            epoch, count = max(one.trained.items(), key=lambda pair: pair[1], default=(0, 0))
            if count > 1:
                self.found(one.place, f"the sampler had the epoch {epoch} in {count} passes that trained", count=count)
        self.begin()


@dataclasses.dataclass
class _Passes:
    place: Place
    epoch: int | None = None  # of the pass that runs
    iterator: weakref.ref[Any] | None = None
    given: int = 0  # batches, at the last step
    steps: int = 0  # each after a new batch
    trained: dict[int, int] = dataclasses.field(default_factory=dict)  # by epoch: passes in which an optimizer stepped

    def see_step(self) -> None:
        iterator = self.iterator() if self.iterator is not None else None
        given = getattr(iterator, "_num_yielded", 0)
        if iterator is not None and given > self.given:  # one that is kept for the next epoch gives none meanwhile
            self.given, self.steps = given, self.steps + 1

    def next(self, epoch: int | None, iterator: Any) -> None:
        if self.epoch is not None and self.steps >= LEAST:
            self.trained[self.epoch] = self.trained.get(self.epoch, 0) + 1
        self.epoch, self.given, self.steps = epoch, 0, 0
        self.iterator = weakref.ref(iterator) if iterator is not None else None
