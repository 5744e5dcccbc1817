"""The rules of Check: each finds what is wrong in its bad program, and no rule finds anything in a good one."""

import contextlib
import datetime
import json
import textwrap
from pathlib import Path

import amanda
import pytest
import torch
import torch.distributed
import torch.nn.functional as F
from amanda.tools.check import RULES, Check
from process_groups import destroy_group
from rank_programs import Ranks
from torch import nn

BY_NAME = {rule.name: rule for rule in RULES}
OF_ONE = [name for name, rule in BY_NAME.items() if rule.processes == 1]
OF_RANKS = [name for name, rule in BY_NAME.items() if rule.processes == 2]


@contextlib.contextmanager
def one_process():
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        torch.distributed.destroy_process_group()


def run(program, check, rank=0):
    """The programs of rules have a model, its optimizer, examples and labels."""
    torch.manual_seed(0)
    names = {"torch": torch, "nn": nn, "F": F, "one_process": one_process, "rank": rank}
    names |= {"x": torch.randn(4, 4), "labels": torch.tensor([0, 1, 2, 0])}
    model = names["model"] = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    names["optimizer"] = torch.optim.SGD(model.parameters(), 0.1)
    with amanda.apply(check):
        exec(compile(textwrap.dedent(program), "program.py", "exec"), names)
    assert check.skipped == {}
    return check.findings()


@pytest.mark.filterwarnings("ignore")  # torch's own, about some of these mistakes
@pytest.mark.parametrize("name", OF_ONE)
def test_the_bad_program_has_one_finding(name):
    found = run(BY_NAME[name].bad, Check(only=[name]))
    assert [one.rule for one in found] == [name]
    assert found[0].place.source.startswith("program.py:")
    if not BY_NAME[name].is_advice:
        assert [one.rule for one in run(BY_NAME[name].bad, Check())] == [name]


@pytest.mark.parametrize("name", OF_ONE)
def test_the_good_program_has_none(name):
    assert run(BY_NAME[name].good, Check(only=[name])) == []
    assert run(BY_NAME[name].good, Check()) == []


def run_on_a_rank(rank, path):
    torch.set_num_threads(1)
    found = {}
    for name in OF_RANKS:
        for kind in ("good", "bad"):
            where, timeout = f"file://{path}/{name}.{kind}", datetime.timedelta(seconds=60)
            torch.distributed.init_process_group("gloo", init_method=where, rank=rank, world_size=2, timeout=timeout)
            program = getattr(BY_NAME[name], kind)
            found[f"{name}.{kind}"] = [one.rule for one in run(program, Check(), rank)]
            destroy_group()
    Path(path, f"{rank}.json").write_text(json.dumps(found))


@pytest.fixture(scope="module")
def of_ranks(preloaded, tmp_path_factory):
    path = tmp_path_factory.mktemp("ranks")
    Ranks(preloaded, path).function(run_on_a_rank, 2, str(path))
    return [json.loads((path / f"{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.parametrize("name", OF_RANKS)
def test_programs_of_several_processes(name, of_ranks):
    """The rank that is last to look sees the notes of the other one."""
    assert {tuple(rank[f"{name}.bad"]) for rank in of_ranks} | {()} == {(name,), ()}
    assert [rank[f"{name}.good"] for rank in of_ranks] == [[], []]
