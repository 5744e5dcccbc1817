"""reinitialized."""

from __future__ import annotations

import weakref
from typing import Any

from amanda import OpContext
from amanda.toolkit import Place

from ..gradients import storage
from ..rule import Rule, Step


class Reinitialized(Rule):
    """A parameter that an optimizer has trained is filled with random numbers, or zeros, and the same optimizer goes
    on to train it. The training until then is lost, and the optimizer's state belongs to other values.

    A new optimizer for the new values, as in a cross-validation, is no finding.
    """

    name = "reinitialized"
    sentence = "a trained parameter is initialized again"
    fix = "initialize once, before the loop; after a reset, make a new optimizer"
    group = "of few operators"
    ops = ("normal_", "uniform_", "zero_")
    bad = """
        for epoch in range(2):
            nn.init.xavier_uniform_(model[0].weight)
            for _ in range(2):
                optimizer.zero_grad()
                F.cross_entropy(model(x), labels).backward()
                optimizer.step()
    """
    good = """
        for fold in range(2):
            nn.init.xavier_uniform_(model[0].weight)
            optimizer = torch.optim.SGD(model.parameters(), 0.1)
            for _ in range(2):
                optimizer.zero_grad()
                F.cross_entropy(model(x), labels).backward()
                optimizer.step()
    """

    def begin(self) -> None:
        self._written: dict[
            int, tuple[Place, int]
        ] = {}  # parameters, by the identity of their memory; with their number
        self._trained: weakref.WeakKeyDictionary[Any, set[int | None]] = weakref.WeakKeyDictionary()
        self._steps = 0

    def look(self, context: OpContext) -> None:
        context.insert_before_op(self._on_write, inputs=[0], place=Place.of(context))

    def _on_write(self, written: Any, place: Place) -> None:
        memory = storage(written)
        if memory is not None and any(memory in known for known in self._trained.values()) and _is_whole(written):
            self._written[memory] = place, written.numel()

    def before_step(self, step: Step) -> None:
        if not self._written:
            return
        trained = self._trained.get(step.optimizer, set())
        for memory, (place, size) in self._written.items():
            if memory in trained:
                self.found(place, f"{size} elements, of which {type(step.optimizer).__name__} has the state")
        self._written.clear()

    def after_step(self, step: Step) -> None:
        if not step.number:
            self._trained[step.optimizer] = {storage(one) for one in step.parameters}


def _is_whole(written: Any) -> bool:
    """False for a view of some elements, as of the row of a padding token."""
    return bool(written.numel() * written.element_size() == written.untyped_storage().nbytes())
