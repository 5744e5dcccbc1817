"""`where=`: a function that selects nothing is told, by every tool that takes one."""

import amanda
import pytest
import torch
from amanda.research import LearnedStepQuantization
from amanda.research.error_injection import BitFlip, ErrorInjection
from amanda.research.pruning import ActivationPruning, ChannelPruning
from amanda.tools.pruning import MagnitudePruning
from amanda.tools.quantization import DynamicQuantization, StaticQuantization

TOOLS = {
    "ActivationPruning": lambda where: ActivationPruning(0.1, where=where),
    "ChannelPruning": lambda where: ChannelPruning(where=where),
    "DynamicQuantization": lambda where: DynamicQuantization(where=where),
    "ErrorInjection": lambda where: ErrorInjection(BitFlip(), where=where),
    "LearnedStepQuantization": lambda where: LearnedStepQuantization(where=where),
    "MagnitudePruning": lambda where: MagnitudePruning(where=where),
    "StaticQuantization": lambda where: StaticQuantization(where=where),
}


class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.head = torch.nn.Conv2d(1, 2, 3), torch.nn.Linear(2, 2)

    def forward(self, x):
        return self.head(self.conv(x).relu().flatten(1))


def run(tool):
    with torch.no_grad(), amanda.apply(tool):
        Network()(torch.ones(1, 1, 3, 3))


@pytest.mark.parametrize("name", TOOLS)
def test_a_where_that_selects_nothing_warns(name):
    with pytest.warns(amanda.UnmatchedFilterWarning) as caught:
        run(TOOLS[name](lambda context: context.module_path == "haed"))
    (told,) = [str(warning.message) for warning in caught]
    assert f"where= of tool '{name}' selected none of the operators that ran; it was asked for those with" in told
    assert told.startswith("[")
    assert caught[0].filename == __file__


@pytest.mark.parametrize("name", TOOLS)
def test_a_where_that_selects_something_does_not(name, recwarn):
    run(TOOLS[name](lambda context: context.module_path in ("conv", "head", "")))
    assert not [warning for warning in recwarn if warning.category is amanda.UnmatchedFilterWarning]


@pytest.mark.parametrize("name", TOOLS)
def test_a_where_must_be_callable(name):
    with pytest.raises(TypeError, match=r"^\[\w+\] where= takes a function of an operator's context, got 'head'$"):
        TOOLS[name]("head")
