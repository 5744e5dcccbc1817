"""OptimizerSteps: where one step of a program of TensorFlow ends, and the next begins."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class OptimizerSteps:
    """Calls `on_step` where a step of the first optimizer ends.

    Attributes:
        what: "step of Adam"; "" before the first.
        count: of those that have ended.
    """

    def __init__(self, on_step: Callable[[], object]) -> None:
        self.what, self.count = "", 0
        self._on_step = on_step
        self._first = 0  # the id of the optimizer

    def on_optimizer(self, optimizer: Any) -> None:
        """An optimizer has stepped."""
        if not self.what:
            name = type(optimizer).__name__
            self.what = "training run of the session" if name == "SessionOptimizer" else f"step of {name}"
            self._first = id(optimizer)
        if id(optimizer) == self._first:
            self.count += 1
            self._on_step()

    def marks(self) -> bool:
        return False

    def on_call(self) -> None:
        """Never called."""

    def reset(self) -> None:
        """The next step is the first."""
        self.what, self.count = "", 0
