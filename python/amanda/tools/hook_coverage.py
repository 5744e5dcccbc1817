"""HookCoverage: how many operators a model has, forward and backward, and how many lie inside hookable leaf modules."""

from __future__ import annotations

import collections
import dataclasses
from typing import TYPE_CHECKING, Literal

from amanda import OpContext, Tool
from amanda.toolkit import Column, Grouping, Results, fields_of, locks, name_column, number_column

if TYPE_CHECKING:
    import torch

GroupBy = Literal["phase", "op", "module"]


@dataclasses.dataclass(frozen=True)
class Row:
    """One phase, or its operators of one type or module. An operator is a place in the program: further runs, in a loop
    or an iteration, add nothing."""

    phase: str  # "forward" or "backward"
    operators: int
    in_leaf_modules: int  # those called directly by a module without submodules, and their backward operators
    leaf_modules: int  # the modules that call them; a hook sees one whole call
    name: str = ""  # by "op": "aten::linear", "AddmmBackward0"; by "module": its path


class HookCoverage(Results[Row, GroupBy], Tool):
    """Counts the operators of a model, and those inside modules on which a module hook can be registered::

        coverage = HookCoverage(model)
        with amanda.apply(coverage):
            model(x).sum().backward()
        print(coverage.table())

    A hook on a module with submodules would see all of their operators at once; leaf modules are the smallest units
    that hooks can distinguish. If a leaf module calls several operators, its hook sees the inputs of the first and the
    outputs of the last.

    Operators that the program calls outside `model`, in a loss or an optimizer, also count as operators.

    Rows are by "phase" (the default: one row for forward, one for backward), or in each phase by "op" or "module", in
    the order in which they first ran. See `Results` for `rows`, `table`, `to_pandas` and `reset`.

    Arguments:
        model: the outermost module that the program calls, of PyTorch: TensorFlow's layers take no hooks.

    Raises:
        TypeError: `model` is no `torch.nn.Module`.
    """

    _speaker = "hook_coverage"

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        if not callable(getattr(model, "named_modules", None)):
            raise TypeError(
                f"[hook_coverage] HookCoverage takes a torch.nn.Module, on whose modules hooks can be registered, got "
                f"{model!r}; amanda.apply(..., coverage=True) counts in every framework"
            )
        modules = {path: module for path, module in model.named_modules() if path}
        self._leaves = frozenset(path for path, module in modules.items() if not any(module.children()))
        self._lock = locks.lock()  # guards the operators
        self._forward: dict[int, _Operator] = {}
        self._backward: dict[int, _Operator] = {}
        self.add_inst_for_op(self._analyze)
        self.add_inst_for_op(self._analyze_backward, backward=True)

    def _analyze(self, context: OpContext) -> None:
        operator = _Operator(context.op.name, context.module_path)
        # In a routine, not here: an analysis does not run again after a reset.
        context.insert_before_op(self._see, inputs=[], seen=self._forward, op_id=context.op_id, operator=operator)

    def _analyze_backward(self, context: OpContext) -> None:
        operator = _Operator(context.backward_op.__name__, context.module_path)
        context.insert_before_backward_op(
            self._see, grad_outputs=[], seen=self._backward, op_id=context.backward_op_id, operator=operator
        )

    def _see(self, seen: dict[int, _Operator], op_id: int, operator: _Operator) -> None:
        with self._lock:
            seen[op_id] = operator

    def reset(self) -> None:
        self.reset_evidence()
        with self._lock:
            self._forward.clear()
            self._backward.clear()

    def _rows(self, by: GroupBy) -> list[Row]:
        with self._lock:
            phases = {"forward": list(self._forward.values()), "backward": list(self._backward.values())}
        if by == "phase":
            return [self._row(phase, operators) for phase, operators in phases.items()]
        groups: dict[tuple[str, str], list[_Operator]] = collections.defaultdict(list)
        for phase, operators in phases.items():
            for operator in operators:
                groups[phase, operator.name if by == "op" else operator.module_path].append(operator)
        return [self._row(phase, operators, name) for (phase, name), operators in groups.items()]

    def _row(self, phase: str, operators: list[_Operator], name: str = "") -> Row:
        inside = [operator.module_path for operator in operators if operator.module_path in self._leaves]
        return Row(phase, len(operators), len(inside), len(set(inside)), name)

    _counts = (
        number_column("operators", "operators"),
        number_column("in leaf modules", "in_leaf_modules"),
        number_column("leaf modules", "leaf_modules"),
    )
    _phase = Column("phase", lambda row: row.phase, left=True, field="phase")
    _groupings = {
        "phase": Grouping([_phase, *_counts], fields_of(Row, without=["name"])),
        "op": Grouping([name_column("op"), _phase, *_counts], fields_of(Row)),
        "module": Grouping([name_column("module"), _phase, *_counts], fields_of(Row)),
    }


@dataclasses.dataclass(frozen=True)
class _Operator:
    name: str
    module_path: str
