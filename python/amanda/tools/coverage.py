"""Coverage: how many operators a model has, forward and backward, and how many lie inside hookable leaf modules."""

from __future__ import annotations

import dataclasses

import torch

from amanda import _fork
from amanda.op_context import OpContext
from amanda.tool import Tool


@dataclasses.dataclass(frozen=True)
class Row:
    """One phase. An operator is a place in the program: further runs, in a loop or an iteration, add nothing."""

    phase: str  # "forward" or "backward"
    operators: int
    in_leaf_modules: int  # those called directly by a module without submodules, and their backward operators
    leaf_modules: int  # the modules that call them; a hook sees one whole call


class Coverage(Tool):
    """Counts the operators of a model, and those inside modules on which a module hook can be registered::

        coverage = Coverage(model)
        with amanda.apply(coverage):
            model(x).sum().backward()
        for row in coverage.rows():
            print(row)

    A hook on a module with submodules would see all of their operators at once; leaf modules are the smallest units
    that hooks can distinguish. If a leaf module calls several operators, its hook sees the inputs of the first and the
    outputs of the last.

    Operators that the program calls outside `model`, in a loss or an optimizer, also count as operators.

    Arguments:
        model: the outermost module that the program calls.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        modules = {path: module for path, module in model.named_modules() if path}
        self._leaves = frozenset(path for path, module in modules.items() if not any(module.children()))
        self._lock = _fork.lock()  # guards the places
        self._forward: dict[int, str] = {}  # operator id to the path of the module that calls it
        self._backward: dict[int, str] = {}
        self.add_inst_for_op(self._see_forward)
        self.add_inst_for_op(self._see_backward, backward=True)

    def _see_forward(self, context: OpContext) -> None:
        with self._lock:
            self._forward[context.op_id] = context.module_path

    def _see_backward(self, context: OpContext) -> None:
        with self._lock:
            self._backward[context.backward_op_id] = context.module_path

    def rows(self) -> list[Row]:
        """The counts so far: one row for forward, one for backward."""
        with self._lock:
            return [self._row("forward", self._forward), self._row("backward", self._backward)]

    def _row(self, phase: str, places: dict[int, str]) -> Row:
        inside = [path for path in places.values() if path in self._leaves]
        return Row(phase, len(places), len(inside), len(set(inside)))
