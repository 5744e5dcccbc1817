"""Rematerialization: the same training as without it, in less memory."""

import re

import amanda
import pytest
import torch
from amanda.research.rematerialization import Rematerialization
from budget_runs import UNLIMITED, bert, convolutions, in_least_memory, mlp, resnet, total, train
from torch import nn
from torch.utils.checkpoint import checkpoint

pytestmark = pytest.mark.usefixtures("one_thread")  # the tensors are small


def assert_same_training(found, expected):
    assert found[0] == expected[0]
    assert found[1].keys() == expected[1].keys()
    for name, value in expected[1].items():
        assert torch.equal(found[1][name], value), name
    assert torch.equal(found[2], expected[2])


@pytest.mark.parametrize("fraction", [1, 0.9, "least"])
@pytest.mark.parametrize("make", [mlp, bert, resnet, convolutions])
def test_twenty_steps_in_a_budget_are_those_without_it(make, fraction):
    measuring = Rematerialization(UNLIMITED)
    expected = train(make, 20)
    assert_same_training(train(make, 20, measuring), expected)
    assert total(measuring, "evicted") == total(measuring, "recomputed") == 0
    if fraction == "least":  # the second step needs more: by then the optimizer has its momentum
        tool, found = in_least_memory(lambda tool: train(make, 20, tool))
    else:
        tool = Rematerialization(int(fraction * measuring.peak), costs="equal")
        found = train(make, 20, tool)
    assert_same_training(found, expected)
    assert tool.budget < 0.95 * measuring.peak or fraction == 1
    assert tool.peak <= tool.budget
    assert (total(tool, "evicted") > 0) == (total(tool, "recomputed") > 0) == (fraction != 1)


@pytest.mark.parametrize("heuristic", ["dtr", "dtr_local", "msps", "lru", "size"])
def test_every_heuristic_trains_the_same(heuristic):
    measuring = Rematerialization(UNLIMITED)
    expected = train(mlp, 3, measuring)
    tool = Rematerialization(measuring.peak // 2, heuristic, costs="equal")
    assert_same_training(train(mlp, 3, tool), expected)
    assert tool.peak <= measuring.peak // 2
    assert total(tool, "recomputed") > 0


def test_it_takes_no_more_memory_than_checkpointing_does():
    layers = nn.ModuleList(nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.LayerNorm(64)) for _ in range(8))

    def step(checkpointed=False):
        x = torch.ones(256, 64)
        for layer in layers:
            x = checkpoint(layer, x, use_reentrant=False) if checkpointed else layer(x)
        x.sum().backward()
        layers.zero_grad()

    vanilla, checkpointed = Rematerialization(UNLIMITED), Rematerialization(UNLIMITED)
    with amanda.apply(vanilla):
        step()
    with amanda.apply(checkpointed):
        step(checkpointed=True)
    assert checkpointed.peak < vanilla.peak
    tool = Rematerialization(checkpointed.peak, costs="equal")
    with amanda.apply(tool):
        step()
    assert tool.peak <= checkpointed.peak


# ---- the example -----------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_the_example_trains_the_same_in_each_budget(run_example):
    printed = run_example("train_in_less_memory.py")
    lines = re.findall(
        r"^(.*?) +([\d.]+) MB +(\d+)% .* (\d+) operators again   gradients equal$", printed, re.MULTILINE
    )
    assert [name for name, *_ in lines] == [
        "as it is", "budget of 75%", "budget of 50%", "budget of 40%", "torch.utils.checkpoint"
    ]  # fmt: skip
    for (_, _, percent, _), budget in zip(lines[:4], (100, 75, 50, 40), strict=True):
        assert int(percent) <= budget  # what is evicted depends on the time that operators take
    again = [int(operators) for *_, operators in lines]
    assert again[0] == again[4] == 0 < min(again[1:4])
