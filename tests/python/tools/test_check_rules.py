"""The rules of Check: each finds what is wrong in its bad program, and no rule finds anything in a good one."""

import contextlib
import textwrap

import amanda
import pytest
import torch
import torch.distributed
import torch.nn.functional as F
from amanda.tools.check import RULES, Check
from torch import nn

BY_NAME = {rule.name: rule for rule in RULES}


@contextlib.contextmanager
def one_process():
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        torch.distributed.destroy_process_group()


def run(program, check):
    """The programs of rules have a model, its optimizer, examples and labels."""
    torch.manual_seed(0)
    names = {"torch": torch, "nn": nn, "F": F, "one_process": one_process}
    names |= {"x": torch.randn(4, 4), "labels": torch.tensor([0, 1, 2, 0])}
    model = names["model"] = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    names["optimizer"] = torch.optim.SGD(model.parameters(), 0.1)
    with amanda.apply(check):
        exec(compile(textwrap.dedent(program), "program.py", "exec"), names)
    assert check.skipped == {}
    return check.findings()


@pytest.mark.filterwarnings("ignore")  # torch's own, about some of these mistakes
@pytest.mark.parametrize("name", BY_NAME)
def test_the_bad_program_has_one_finding(name):
    found = run(BY_NAME[name].bad, Check(only=[name]))
    assert [one.rule for one in found] == [name]
    assert found[0].place.source.startswith("program.py:") or name == "spectral-norm-untrained"
    if not BY_NAME[name].is_advice:
        assert [one.rule for one in run(BY_NAME[name].bad, Check())] == [name]


@pytest.mark.parametrize("name", BY_NAME)
def test_the_good_program_has_none(name):
    assert run(BY_NAME[name].good, Check(only=[name])) == []
    assert run(BY_NAME[name].good, Check()) == []
