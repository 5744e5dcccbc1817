"""Check: the tool."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Never

from amanda import OpContext, Tool
from amanda.toolkit import Skips, TellsSkips, eager_only
from amanda.toolkit.evidence import counted
from amanda.toolkit.frames import outwards
from amanda.toolkit.frameworks import is_tensorflow

from .allowed import Allowed, check_name
from .asked_gradients import AskedGradients
from .computed import ComputedInputs
from .finding import Finding, texts
from .keras_steps import KerasSteps
from .report import Report
from .rule import Rule
from .rules import RULES

_Look = Callable[[OpContext], None]


class Check(TellsSkips, Tool):
    """Looks for mistakes in a program while it runs, by rules::

        check = Check()
        with amanda.apply(check):
            train(model)
        print(check.answer())

    Each rule looks only at the operators that it names, and most of them once per place in the program. No rule changes the
    program. Labels and targets are read on the CPU; rules about language models read ids, labels and masks of attention on
    any device, up to the 16th loss. Only "dead-units", which is advice, reads results of operators later. Some rules
    know TensorFlow, too; the others say nothing about it.

    Arguments:
        only: names of rules; by default, all that are no advice.
        advice: also rules for which right programs may have reasons.
        allow: "RULE", "RULE:MODULE" or "RULE:FILE.py:LINE", which is then no finding. A comment in the line does the same:
            ``# amanda: allow(RULE)``.
        rules: classes of rules; by default, those that ship.

    Raises:
        ValueError: there is no such rule.
    """

    needs_eager = "rules follow a program line by line"
    leaves_compiled_out = True
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
        self._report = Report(Allowed(allow, names), self._skips)
        chosen = [rule for rule in rules if (rule.name in only if only else advice or not rule.is_advice)]
        self._rules = [rule(self._report) for rule in chosen]
        self._steps: Any = None
        self._loads: Any = None
        self._loaders: Any = None
        self._keras_steps = KerasSteps(self._rules)
        asking = [rule for rule in self._rules if type(rule).after_gradients is not Rule.after_gradients]
        self._gradients = AskedGradients(asking)
        if asking:
            self.depends_on(self._gradients)
        self._open = 0  # scopes
        self._ran: set[str] = set()  # frameworks, of which operators ran
        computed = ComputedInputs()
        alike: dict[object, list[Rule]] = {}
        for rule in self._rules:
            if rule.ops:
                alike.setdefault(rule.group or _asked(rule), []).append(rule)
        self._looking = [_Looking(rules, self._analyze, computed) for rules in alike.values()]
        if self._looking:
            self.depends_on(*self._looking)
            asked = sorted({name for one in self._looking for name in one.ops})
            self.add_inst_for_op(self._count, ops=asked, optional=True)
        if any(rule.counts_backward for rule in self._rules):
            self.add_inst_for_op(self._analyze_seed, ops="aten::ones_like", optional=True)

    def narrow(self, *, ops: Any = None, modules: Any = None, **unknown: Never) -> None:
        """Restricts what its rules look at, as in all tools. Steps of optimizers are not restricted.

        Raises:
            TypeError, ValueError, amanda.Error: as in all tools.
        """
        super().narrow(ops=ops, modules=modules, **unknown)
        for one in self._looking:
            one.narrow(ops=ops, modules=modules)

    # ---- results ----------------------------------------------------------------------------------------------------

    def findings(self) -> list[Finding]:
        """The findings, in the order in which they were found."""
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
        found, evidence = self.findings(), self.evidence()
        only_tensorflow = self._frameworks == {"tensorflow"}
        knowing = [rule for rule in self._rules if self._may_find(rule)]
        rules = counted(len(knowing), "rule")
        unseen = "" if evidence.is_complete else f"; not looked at: {evidence.not_looked_at}"
        both = [one for one in (self._steps, self._keras_steps) if one is not None]
        steps, optimizers = (sum(getattr(one, each) for one in both) for each in ("steps", "optimizers"))
        stepped = f"{counted(steps, 'step')} of {counted(optimizers, 'optimizer')}" if steps else ""
        asked = counted(self._gradients.calls, "call") if self._gradients.calls else ""
        if not found and not evidence.operators and not stepped and not asked:
            return f"nothing was looked at: no operator ran that {rules} ask for{unseen}"
        head = counted(len(found), "finding") if found else "nothing found"
        until = "" if ended_well else ", until the program failed"
        where = f"{counted(evidence.operators, 'operator')} that they ask for"
        if only_tensorflow:
            others = len(self._rules) - len(knowing)
            unseen = f"; {counted(others, 'rule')} of PyTorch had nothing to look at{unseen}" if others else unseen
        if stepped or not only_tensorflow:
            where = f"{where}, and {stepped or 'no step of an optimizer'}"
        elif asked and not evidence.operators:
            where = f"{where}, and {asked} of tape.gradient or tf.gradients"
        allowed = f"; {counted(self._report.allowed, 'finding')} allowed" if self._report.allowed else ""
        return "\n\n".join([f"{head} by {rules}{until}, in {where}{allowed}{unseen}", *texts(found)])

    @property
    def _frameworks(self) -> set[str]:
        """Those of which something was seen."""
        return self._ran | ({"tensorflow"} if self._gradients.calls or self._keras_steps.steps else set())

    def _may_find(self, rule: Rule) -> bool:
        """True if it knows a framework that ran."""
        if self._frameworks == {"tensorflow"}:
            return rule.knows("tensorflow")
        return "tensorflow" in self._frameworks or not rule.is_of_tensorflow

    def reset(self) -> None:
        self.reset_evidence()
        self._skips.reset()
        self._report.clear()
        self._ran.clear()
        for rule in self._rules:
            rule.begin()
        if self._steps is not None:
            self._steps.reset()
        self._keras_steps.reset()
        self._gradients.reset()

    # ---- the program runs -------------------------------------------------------------------------------------------

    def on_enter(self) -> None:
        self._open += 1
        self._keras_steps.open()
        self._gradients.open()
        if "torch" in sys.modules:
            self._follow_optimizers()

    def on_exit(self, error: BaseException | None) -> None:
        self._open -= 1
        if not self._open:
            self._keras_steps.close()
            self._gradients.close()
            if self._steps is not None:
                self._steps.close()
                self._loads.close()
                self._loaders.close()
        ended_well = error is None or (isinstance(error, SystemExit) and not error.code)
        for rule in self._rules:
            rule.call(rule.at_end, ended_well)

    def _follow_optimizers(self) -> None:
        if self._steps is None:
            from .steps import OptimizerSteps

            self._steps = OptimizerSteps(self._rules)
            from .loads import Loads

            self._loads = Loads(self._rules)
            from .loaders import Loaders

            self._loaders = Loaders(self._rules)
        self._steps.open()
        self._loads.open()
        self._loaders.open()

    def _count(self, context: OpContext) -> None:
        """For the evidence: an operator that several rules look at is one."""
        self._ran.add(context.namespace.partition("/")[0])

    def _analyze(self, look: _Look, context: OpContext) -> None:
        if not self._open:  # the scope was closed while another thread was in an operator
            return
        if not is_tensorflow(context):
            if eager_only.leaves_out(context, self._skips, self.needs_eager):
                return
            self._follow_optimizers()  # a program may import torch inside the scope
        try:
            look(context)
        except Exception as error:  # a rule is no reason to end a program
            self._skips.add("failed", f"{context.op.name}: {type(error).__name__}: {error}")

    def _analyze_seed(self, context: OpContext) -> None:
        """`backward()` makes the gradient of the loss by this operator, unless it is given one."""
        if self._open and not context.is_symbolic and _in_backward():
            self._follow_optimizers()
            context.insert_before_op(self._steps.begin_backward, inputs=[])


class _Looking(Tool):
    """The tool that looks for rules that ask for the same operators. A tool sees no operators inside those that it asks
    for, and rules ask for operators that are inside those of others."""

    needs_eager = Check.needs_eager
    leaves_compiled_out = True

    def __init__(
        self, rules: Sequence[Rule], analyze: Callable[[_Look, OpContext], None], computed: ComputedInputs
    ) -> None:
        super().__init__(f"check: {', '.join(rule.name for rule in rules)}")
        if any(rule.knows("tensorflow") for rule in rules):
            self.depends_on(computed)
        self.ops = sorted({name for rule in rules for name in _asked(rule)[0]})
        for rule in rules:
            ops, backward_ops, with_outputs = _asked(rule)
            self.add_inst_for_op(
                functools.partial(analyze, rule.look), False, with_outputs, ops=list(ops), optional=True
            )
            if backward_ops:
                look = functools.partial(analyze, rule.look_backward)
                self.add_inst_for_op(look, True, ops=list(backward_ops), optional=True)


def _asked(rule: Rule) -> tuple[tuple[str, ...], tuple[str, ...], bool]:
    """The operators that it asks for, with their namespace: where there is no torch, they are no mistakes. Its backward
    operators; and if it asks for results."""
    ops, backward_ops = (tuple(sorted(map(_with_namespace, names))) for names in (rule.ops, rule.backward_ops))
    return ops, backward_ops, rule.with_outputs


def _with_namespace(name: str) -> str:
    return name if "::" in name else f"aten::{name}"


def _in_backward() -> bool:
    inside = (frame for frame in outwards(sys._getframe(1)) if frame.f_globals.get("__name__") == "torch.autograd")
    return any(frame.f_code.co_name == "backward" for frame in inside)
