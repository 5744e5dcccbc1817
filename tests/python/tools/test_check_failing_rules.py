"""A rule of Check that raises is counted, and the program runs on."""

import amanda
import torch
from amanda.tools.check import Check, Rule
from torch import nn


class Failing(Rule):
    """A rule with a mistake of its own."""

    name, sentence, fix, bad, good = "failing", "", "", "", ""
    ops = ("relu",)

    def look(self, context):
        raise RuntimeError("no")


def test_a_rule_that_fails_does_not_end_the_program():
    with amanda.apply(Check(rules=[Failing])) as check:
        torch.ones(2).relu()
    assert check.skipped == {"failed": 1}
    assert "; not looked at: 1 value: " in check.answer()


class FailingAtSteps(Failing):
    name = "failing-at-steps"

    def before_backward(self):
        raise RuntimeError("before backward")

    def before_step(self, step):
        raise RuntimeError("before a step")

    def after_step(self, step):
        raise RuntimeError("after a step")

    def after_load(self, load):
        raise RuntimeError("after a load")

    def at_end(self, ended_well):
        raise RuntimeError("at the end")

    counts_backward = True


def test_a_rule_that_fails_at_a_step_or_a_load_does_not_end_the_program():
    with amanda.apply(Check(rules=[FailingAtSteps])) as check:
        model = nn.Linear(2, 1)
        model(torch.ones(1, 2)).relu().sum().backward()
        torch.optim.SGD(model.parameters(), 0.1).step()
        model.load_state_dict(model.state_dict())
    assert check.skipped == {"failed": 6}
