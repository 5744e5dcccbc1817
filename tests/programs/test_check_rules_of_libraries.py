"""Rules of Check about libraries: each finds what is wrong in its bad program, and no rule finds anything in a good one."""

from __future__ import annotations

import importlib
import textwrap
from typing import Any

import accelerate.state
import amanda
import pytest
import torch
import torch.nn.functional as F
from amanda.tools.check import RULES, Check, Finding
from torch import nn

OF_LIBRARIES = {rule.name: rule for rule in RULES if rule.library}


@pytest.fixture(autouse=True)
def no_accelerator() -> None:
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerate.state.GradientState._reset_state()


def run(program: str, rule: type, check: Check) -> list[Finding]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    names: dict[str, Any] = {"torch": torch, "nn": nn, "F": F, rule.library: importlib.import_module(rule.library)}
    names |= {"x": torch.randn(4, 4), "labels": torch.tensor([0, 1, 2, 0]), "model": model}
    names["optimizer"] = torch.optim.SGD(model.parameters(), 0.1)
    with amanda.apply(check):
        exec(compile(textwrap.dedent(program), "program.py", "exec"), names)
    assert check.skipped == {}
    return check.findings()


@pytest.mark.parametrize("name", OF_LIBRARIES)
def test_the_bad_program_has_one_finding(name: str) -> None:
    (one,) = run(OF_LIBRARIES[name].bad, OF_LIBRARIES[name], Check())
    assert one.rule == name
    assert one.place.source.startswith("program.py:")


@pytest.mark.parametrize("name", OF_LIBRARIES)
def test_the_good_program_has_none(name: str) -> None:
    assert run(OF_LIBRARIES[name].good, OF_LIBRARIES[name], Check()) == []


def test_the_steps_before_gradients_are_added_up_are_counted() -> None:
    rule = OF_LIBRARIES["accumulation-bypassed"]
    (one,) = run(rule.bad, rule, Check())
    assert (one.place.name, one.count) == ("SGD.step", 6)
    assert one.evidence == "6 of its 8 steps were taken before all gradients were added up"


def test_steps_that_ask_accelerate_themselves_are_right() -> None:
    rule = OF_LIBRARIES["accumulation-bypassed"]
    program = rule.bad.replace("optimizer.step()", "accelerator.sync_gradients and optimizer.step()")
    program = program.replace("optimizer.zero_grad()", "accelerator.sync_gradients and optimizer.zero_grad()")
    assert run(program, rule, Check()) == []
