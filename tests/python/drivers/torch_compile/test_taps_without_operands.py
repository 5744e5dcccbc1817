"""Routines that ask for no operand run once for each run of the operator, also in graphs inside a graph."""

from __future__ import annotations

import amanda
import pytest
import torch
from compiling import differentiate
from torch import nn
from torch.utils.checkpoint import checkpoint


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def conditional(x):
    return torch.cond(x.sum() > 0, lambda x: x.relu() * 2, lambda x: x.sin(), (x,)).cos()


def conditionals(x):
    def inner(x):
        return torch.cond(x.sum() > 0, lambda x: x.relu() * 2, lambda x: x.cos(), (x,)) + 1

    return torch.cond(x.sum() > 0, inner, lambda x: x.sin(), (x,))


def loop(x):
    return torch.while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, (x * 2).relu()), (torch.tensor(0), x))[1] + 1


class Checkpointed(nn.Module):
    def __init__(self, inner):
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.inner = nn.Linear(3, 3), inner

    def forward(self, x):
        return checkpoint(lambda x: self.inner(self.linear(x)), x, use_reentrant=False).sin()


REGIONS = {
    "cond": lambda: conditional,
    "cond in cond": lambda: conditionals,
    "checkpoint": lambda: Checkpointed(torch.relu),
    "while_loop": lambda: loop,
}
ROUTINES = {
    "before": ("insert_before_op", {"inputs": []}),
    "after": ("insert_after_op", {"outputs": []}),
    "after, no inputs either": ("insert_after_op", {"outputs": [], "inputs": []}),
    "before, with its execution": ("insert_before_op", {"inputs": [], "run": True}),
    "before backward": ("insert_before_backward_op", {"grad_outputs": []}),
    "after backward": ("insert_after_backward_op", {"grad_inputs": []}),
}


class Counts(amanda.Tool):
    """Counts runs of a routine that gets nothing, without those of recomputed operators: cond, too, computes some again."""

    def __init__(self, method, options):
        super().__init__()
        self.runs = 0
        self.add_inst_for_op(lambda context: getattr(context, method)(self.count, **options), ops="relu")

    def count(self, **run):
        self.runs += 1


def results(function, x, tool=None, is_backward=False):
    """What it returns, and the gradient; and how often the tool's routine ran by then."""
    x.grad = None
    y = function(x)
    runs = tool.runs if tool else 0
    if y.requires_grad:
        differentiate(y)
    return (y.detach(), x.grad), tool.runs if tool and is_backward else runs


def equal(some, others):
    return all(a is b is None or torch.equal(a, b) for a, b in zip(some, others, strict=True))


# PyTorch differentiates no while_loop.
CASES = [(region, what) for region in REGIONS for what in ROUTINES if region != "while_loop" or "backward" not in what]


@pytest.mark.parametrize(("region", "what"), CASES)
@pytest.mark.parametrize("backend", ["eager", "aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_a_routine_without_operands_in_a_graph_inside_a_graph(backend, region, what):
    function, routine = REGIONS[region](), ROUTINES[what]
    x = torch.ones(3, requires_grad=region != "while_loop")
    compiled, tool = torch.compile(function, backend=backend), Counts(*routine)
    expected, _ = results(compiled, x)
    with amanda.apply(tool, compiled="graph"):
        found, runs = results(compiled, x, tool, "backward" in what)
    assert equal(found, expected)
    assert runs == (3 if region == "while_loop" else 1)
