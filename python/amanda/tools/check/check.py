"""Check: the tool."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from amanda import OpContext, Tool
from amanda.toolkit import Skips, TellsSkips, eager_only
from amanda.toolkit.evidence import counted

from .allowed import Allowed, check_name
from .finding import Finding
from .report import Report
from .rule import Rule
from .rules import RULES

LOSSES = ("mean", "sum", "*_loss*", "binary_cross_entropy*", "div", "add")
"""Operators at which backward passes begin."""
_WHY = "rules follow a program line by line"


class Check(TellsSkips, Tool):
    """Looks for mistakes in a program while it runs, by rules::

        check = Check()
        with amanda.apply(check):
            train(model)
        print(check.answer())

    Each rule looks only at the operators that it names, and most of them once per place in the program. No rule changes the
    program. Some read labels, which are small; only "dead-units", which is advice, reads results of operators.

    Arguments:
        only: names of rules; by default, all that are no advice.
        advice: also rules for which right programs may have reasons.
        allow: "RULE", "RULE:MODULE" or "RULE:FILE.py:LINE", which is then no finding. A comment in the line does the same:
            ``# amanda: allow(RULE)``.
        rules: classes of rules; by default, those that ship.

    Raises:
        ValueError: there is no such rule.
    """

    _speaker = "check"

    def __init__(
        self,
        *,
        only: Sequence[str] = (),
        advice: bool = False,
        allow: Iterable[str] = (),
        rules: Sequence[type[Rule]] = RULES,
    ) -> None:
        super().__init__()
        names = [rule.name for rule in rules]
        for name in only:
            check_name("only", name, names)
        self._skips = Skips("check")
        self._report = Report(Allowed(allow, names))
        chosen = [rule for rule in rules if (rule.name in only if only else advice or not rule.is_advice)]
        self._rules = [rule(self._report) for rule in chosen]
        self._steps: Any = None
        self._open = 0  # scopes
        for rule in self._rules:
            if rule.ops:
                look = functools.partial(self._analyze, look=rule.look)
                self.add_inst_for_op(look, False, rule.with_outputs, ops=rule.ops, optional=True)
        if any(rule.counts_backward for rule in self._rules):
            self.add_inst_for_op(self._analyze_backward, backward=True, ops=LOSSES, optional=True)

    # ---- results ----------------------------------------------------------------------------------------------------

    def findings(self) -> list[Finding]:
        """What was found, in the order in which it was found."""
        return self._report.findings()

    @property
    def rules(self) -> list[str]:
        """The names of the rules that it follows."""
        return [rule.name for rule in self._rules]

    def answer(self, *, ended_well: bool = True) -> str:
        """The findings; or that there is none, and what was looked at.

        Arguments:
            ended_well: the program did not fail.
        """
        found = self.findings()
        head = f"{counted(len(found), 'finding')}{self._looked_at(ended_well)}" if found else ""
        return "\n\n".join([head, *map(str, found)]) if found else f"nothing found{self._looked_at(ended_well)}"

    def _looked_at(self, ended_well: bool) -> str:
        evidence, steps = self.evidence(), self._steps
        until = "" if ended_well else ", until the program failed"
        if steps is None or not steps.steps:
            stepped = "no step of an optimizer"
        else:
            stepped = f"{counted(steps.steps, 'step')} of {counted(steps.optimizers, 'optimizer')}"
        allowed = f"; {counted(self._report.allowed, 'finding')} allowed" if self._report.allowed else ""
        unseen = "" if evidence.is_complete else f"; not looked at: {evidence.not_looked_at}"
        ran = f"{counted(evidence.operators, 'operator')} that they ask for, and {stepped}"
        return f" by {counted(len(self._rules), 'rule')}{until}, in {ran}{allowed}{unseen}"

    def reset(self) -> None:
        self.reset_evidence()
        self._skips.reset()
        self._report.clear()
        for rule in self._rules:
            rule.begin()
        if self._steps is not None:
            self._steps.reset()

    # ---- the program runs -------------------------------------------------------------------------------------------

    def on_enter(self) -> None:
        self._open += 1
        if "torch" in sys.modules:
            self._follow_optimizers()

    def on_exit(self, error: BaseException | None) -> None:
        self._open -= 1
        if self._steps is not None and not self._open:
            self._steps.close()
        ended_well = error is None or (isinstance(error, SystemExit) and not error.code)
        for rule in self._rules:
            rule.at_end(ended_well)

    def _follow_optimizers(self) -> None:
        if self._steps is None:
            from .steps import OptimizerSteps

            self._steps = OptimizerSteps(self._rules)
        self._steps.open()

    def _analyze(self, context: OpContext, look: Any) -> None:
        if not eager_only.leaves_out(context, self._skips, _WHY):
            self._follow_optimizers()  # a program may import torch inside the scope
            look(context)

    def _analyze_backward(self, context: OpContext) -> None:
        if context.backward_op.__name__ != "AccumulateGrad" and not context.is_symbolic and self._steps is not None:
            context.insert_before_backward_op(self._steps.count_backward, [])
