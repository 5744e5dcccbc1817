"""Rule: the base of all rules, and what they are told about optimizers."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

from amanda import OpContext
from amanda.toolkit import Place

from .report import Report


@dataclasses.dataclass(frozen=True)
class Step:
    """A call of an optimizer's `step`."""

    optimizer: Any
    number: int  #: of this optimizer's steps, from 0 on
    place: Place  #: "SGD.step", and the line that calls it
    has_closure: bool  #: the forward and backward pass run inside the step
    backward_passes: int  #: that were seen since the last step of any optimizer

    @property
    def parameters(self) -> list[Any]:
        return [one for group in self.optimizer.param_groups for one in group["params"]]


class Rule:
    """Base of rules: a class in a file of `rules/`. Its docstring is its documentation.

    `look` is called once for each operator that `ops` names, as an analysis routine of a tool is. `before_step` and
    `after_step` are called at each step of any optimizer, and `at_end` when the scope is left.
    """

    name: ClassVar[str]  #: "loss-broadcast"
    sentence: ClassVar[str]  #: what is wrong where it finds something
    fix: ClassVar[str]
    bad: ClassVar[str]  #: a program in which it finds one place
    good: ClassVar[str]  #: the same without the mistake
    is_advice: ClassVar[bool] = False  #: right programs may have reasons for what it finds
    ops: ClassVar[Sequence[str]] = ()  #: the operators that it looks at
    with_outputs: ClassVar[bool] = False  #: it looks at operators after they have run
    counts_backward: ClassVar[bool] = False  #: it uses `Step.backward_passes`

    def __init__(self, report: Report) -> None:
        self._report = report
        self.begin()

    def begin(self) -> None:
        """Sets what it remembers to nothing; also called by `reset` of the tool."""

    def look(self, context: OpContext) -> None:
        """Looks at an operator, once."""

    def before_step(self, step: Step) -> None:
        """Called before an optimizer's step."""

    def after_step(self, step: Step) -> None:
        """Called after it."""

    def at_end(self, ended_well: bool) -> None:
        """Called when the scope is left. `ended_well`: not by an exception."""

    def found(self, place: Place, evidence: str, *, count: int = 1, key: str = "") -> None:
        """Reports a place. Reports with the same place and key are one finding, whose counts add up."""
        self._report.add(self, place, evidence, count, key)

    def found_in(self, context: OpContext, evidence: str) -> None:
        """Reports each run of the operator that `look` was given."""
        context.insert_after_op(self.found, outputs=[], place=Place.of(context), evidence=evidence)


def operands(context: OpContext) -> dict[str, Any]:
    """The inputs of an operator, by the names of its schema."""
    return dict(zip(context.op.input_names, context.inputs, strict=False))
