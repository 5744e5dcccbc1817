"""Rematerialization: programs with everything evicted that can be, and regimes."""

import contextlib

import amanda
import pytest
import torch
from amanda.research.rematerialization import Rematerialization
from budget_runs import UNLIMITED, in_least_memory, sufficient, total
from evicted_programs import PROGRAMS, write_through_data
from tool_regimes import REGIMES, in_regime
from torch import nn

pytestmark = pytest.mark.usefixtures("one_thread")  # the tensors are small

EVICTS_NOTHING = {write_through_data}


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_with_everything_evicted_computes_the_same(program):
    torch.manual_seed(0)
    expected = [value.clone() for value in program()]
    torch.manual_seed(0)
    tool = Rematerialization(1)
    with pytest.raises(amanda.Error, match="a budget of 1 bytes is too small"), amanda.apply(tool):
        found = program()
    assert len(found) == len(expected)
    for value, other in zip(found, expected, strict=True):
        assert torch.equal(value, other)
    assert total(tool, "evicted") > 0 or program in EVICTS_NOTHING


@pytest.mark.parametrize("regime", REGIMES)
def test_a_regime_trains_the_same(regime):
    def step(tool=None):
        torch.manual_seed(0)
        model = nn.Sequential(
            *[nn.Linear(16, 16), nn.GELU(), nn.Dropout(0.2), nn.LayerNorm(16)],
            *[nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 4)],
        )
        x = torch.linspace(-1, 1, 512).view(32, 16)
        with in_regime(regime, model) as run, amanda.apply(tool) if tool else contextlib.nullcontext():
            run(x).float().sin().tanh().square().sum().backward()
        return [parameter.grad for parameter in model.parameters()]

    torch._dynamo.reset()
    expected = step()
    with pytest.raises(amanda.Error, match="too small") as caught:
        step(Rematerialization(1))
    for budget in (UNLIMITED, sufficient(caught.value)):
        tool = Rematerialization(budget)
        for value, other in zip(step(tool), expected, strict=True):
            assert torch.equal(value, other)
        assert tool.peak <= budget
        assert total(tool, "evicted") == 0
    tool, found = in_least_memory(step)
    for value, other in zip(found, expected, strict=True):
        assert torch.equal(value, other)
    assert tool.peak <= tool.budget
    # A checkpointed region saves nothing until it is computed again, and needs the most then.
    assert (total(tool, "evicted") > 0) == (regime != "checkpointing")
