"""The tools in the table of accuracy, with their settings. A case is an entry of `CASES`."""

import dataclasses
from collections.abc import Callable
from typing import Any

from amanda.tools import pruning, quantization

DIGITS = ("CNN", "transformer")


def nothing(tool):
    pass


@dataclasses.dataclass(frozen=True)
class Case:
    """A tool with its settings, as one row of the table."""

    tool: str  # as docs/tools.md names it: module.Class
    setting: str
    make: Callable[[], Any]
    tasks: tuple[str, ...] = (*DIGITS, "MiniLM")  # of `tasks.TASKS`, those that have something for the tool to edit
    trains: bool = True  # False: it is not made for training
    calibrates: bool = False  # sees training data before it is scored
    before_scoring: Callable[[Any], object] = nothing
    before_training: Callable[[Any], object] = nothing

    @property
    def title(self):
        return f"{self.tool}, {self.setting}"


def observe(on):
    def switch(tool):
        tool.observe = on

    return switch


CASES = [
    Case("pruning.MagnitudePruning", "sparsity 0.5", lambda: pruning.MagnitudePruning(0.5)),
    Case("pruning.MagnitudePruning", "sparsity 0.8", lambda: pruning.MagnitudePruning(0.8)),
    Case("pruning.MagnitudePruning", "sparsity 0.9", lambda: pruning.MagnitudePruning(0.9), DIGITS),
    Case("pruning.VectorwisePruning", "2 of 4", pruning.VectorwisePruning),
    Case(
        "quantization.FakeQuantization",
        "8 bits",
        quantization.FakeQuantization,
        calibrates=True,
        before_scoring=observe(False),
        before_training=observe(True),
    ),
]
