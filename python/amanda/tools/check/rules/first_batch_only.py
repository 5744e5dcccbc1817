"""first-batch-only."""

from __future__ import annotations

import dataclasses
import weakref
from typing import Any

from ..modes import records
from ..rule import Pass, Rule, Step

LEAST = 4  # passes in a row that gave one batch


class FirstBatchOnly(Rule):
    """The loop calls ``next(iter(loader))``, which begins a new pass each time. Without shuffling, that is the first batch
    again and again: the model never sees the rest of the data.

    It reports a `DataLoader` with more batches than one, in the order of the data, of which four passes in a row gave
    one batch each. Between two of them there is one step of an optimizer, or none, and no other loader gives batches: one
    batch for a quick look, once in a while, is no finding. Nor is one that is taken in `torch.no_grad`, or a pass that a
    library begins, which may be asked for a few batches.
    """

    name = "first-batch-only"
    sentence = "each pass over the data ends with its first batch"
    fix = "for batch in loader; or make the iterator once, before the loop: batches = iter(loader), and next(batches)"
    bad = """
        data = torch.utils.data.TensorDataset(torch.randn(8, 4))
        loader = torch.utils.data.DataLoader(data, 4)
        for _ in range(6):
            (batch,) = next(iter(loader))
            optimizer.zero_grad()
            F.cross_entropy(model(batch), labels).backward()
            optimizer.step()
    """
    good = """
        data = torch.utils.data.TensorDataset(torch.randn(8, 4))
        loader, shown = torch.utils.data.DataLoader(data, 4), torch.utils.data.DataLoader(data, 2)
        for _ in range(6):
            for (batch,) in loader:
                optimizer.zero_grad()
                F.cross_entropy(model(batch), labels).backward()
                optimizer.step()
                model(next(iter(shown))[0])  # a look at a few
    """

    def begin(self) -> None:
        self._steps = 0
        self._loaders: weakref.WeakKeyDictionary[Any, _Passes] = weakref.WeakKeyDictionary()

    def before_step(self, step: Step) -> None:
        self._steps += 1

    def on_pass(self, begun: Pass) -> None:
        passes = self._loaders.get(begun.loader)
        if passes is None:
            passes = self._loaders[begun.loader] = _Passes(_repeats(begun.loader))
        is_only = not any(one.runs for one in self._loaders.values() if one is not passes)
        is_short = passes.repeats and passes.given == 1 and self._steps - passes.steps <= 1 and is_only
        is_short = is_short and begun.by_program and records()
        passes.in_a_row = passes.in_a_row + 1 if is_short else 0
        passes.begin(begun.iterator, self._steps)
        if passes.in_a_row >= LEAST:
            what = f"a new pass begins after one batch of {len(begun.loader)}, and the order is always the same"
            self.found(begun.place, what, count=LEAST if passes.in_a_row == LEAST else 1)

    def at_end(self, ended_well: bool) -> None:
        self.begin()


@dataclasses.dataclass
class _Passes:
    repeats: bool  # the order is that of the data, and there are several batches
    iterator: weakref.ref[Any] | None = None
    state: dict[str, Any] = dataclasses.field(default_factory=dict)  # its attributes: its end stops its workers
    steps: int = 0  # of all optimizers, when it began
    in_a_row: int = 0

    def begin(self, iterator: Any, steps: int) -> None:
        self.iterator, self.steps = weakref.ref(iterator), steps
        self.state = vars(iterator) if self.repeats else {}

    @property
    def runs(self) -> bool:
        return self.iterator is not None and self.iterator() is not None

    @property
    def given(self) -> int:
        """Batches of the last pass."""
        return int(self.state.get("_num_yielded", 0))


def _repeats(loader: Any) -> bool:
    from torch.utils.data import SequentialSampler

    return isinstance(getattr(loader, "sampler", None), SequentialSampler) and len(loader) > 1
