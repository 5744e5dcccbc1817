"""Routines that ask for no operand run once for each run of the operator, also in graphs inside a graph."""

from __future__ import annotations

import functools

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


FORWARD = [what for what in ROUTINES if "backward" not in what]
BACKWARD = [what for what in ROUTINES if "backward" in what]


class Counts(amanda.Tool):
    """Counts runs of routines that get nothing, without those of recomputed operators: cond, too, computes some again."""

    def __init__(self, names):
        super().__init__()
        self.names, self.runs = names, dict.fromkeys(names, 0)
        self.add_inst_for_op(self.analyze, ops="relu")

    def analyze(self, context):
        for name in self.names:
            method, options = ROUTINES[name]
            getattr(context, method)(functools.partial(self.count, name), **options)

    def count(self, name, **run):
        self.runs[name] += 1


def results(function, x, tool=None):
    """What it returns, and the gradient; and how often the tool's routines ran by then."""
    x.grad = None
    y = function(x)
    runs = dict(tool.runs) if tool else {}
    if y.requires_grad:
        differentiate(y)
    return (y.detach(), x.grad), runs | {name: tool.runs[name] for name in runs if name in BACKWARD}


def equal(some, others):
    return all(a is b is None or torch.equal(a, b) for a, b in zip(some, others, strict=True))


def check_runs(backend, region, names):
    x = torch.ones(3, requires_grad=region != "while_loop")
    compiled, tool = torch.compile(REGIONS[region](), backend=backend), Counts(names)
    expected, _ = results(compiled, x)
    with amanda.apply(tool, compiled="graph"):
        found, runs = results(compiled, x, tool)
    assert equal(found, expected)
    assert runs == dict.fromkeys(names, 3 if region == "while_loop" else 1)


# PyTorch differentiates no while_loop.
CASES = [
    (region, names) for region in REGIONS for names in (FORWARD, BACKWARD) if region != "while_loop" or names is FORWARD
]


@pytest.mark.parametrize(
    ("backend", "region", "names"),
    [
        *((backend, *case) for backend in ("eager", "aot_eager") for case in CASES),
        *(pytest.param("inductor", *case, marks=pytest.mark.slow) for case in CASES if case[0] == "cond"),
        *(pytest.param("inductor", *case, marks=pytest.mark.long) for case in CASES if case[0] != "cond"),
    ],
)
def test_routines_without_operands_in_a_graph_inside_a_graph(backend, region, names):
    check_runs(backend, region, names)


@pytest.mark.parametrize("name", ROUTINES)
def test_a_routine_without_operands_alone_in_a_graph_inside_a_graph(name):
    check_runs("aot_eager", "cond", [name])


RESULTS = {
    "var_mean": lambda x: torch.var_mean(x * 1, 0),
    "aminmax": lambda x: torch.aminmax(x * 1),
    "linalg_qr": lambda x: torch.linalg.qr(x * 1),
}


@pytest.mark.parametrize("result", [0, 1])
@pytest.mark.parametrize("name", RESULTS)
@pytest.mark.parametrize("point", ["before", "before, with a gradient", "after"])
def test_a_backward_routine_runs_whichever_result_has_a_gradient(name, result, point):
    made = []

    def analyze(context):
        if point == "after":
            context.insert_after_backward_op(lambda: made.append(()), grad_inputs=[])
        elif point == "before":
            context.insert_before_backward_op(lambda: made.append(()), grad_outputs=[])
        else:
            context.insert_before_backward_op(lambda given: made.append(given is not None), grad_outputs=[0])

    tool = amanda.Tool()
    tool.add_inst_for_op(analyze, ops=name, backward=True)

    def run(function):
        made.clear()
        x = torch.arange(16.0).reshape(4, 4).sin().requires_grad_()
        with amanda.apply(tool, compiled="graph"):
            function(x).backward()
        return [*made], x.grad

    def program(x):
        return RESULTS[name](x)[result].sum()

    eager = run(program)
    found = run(torch.compile(program, backend="aot_eager"))
    assert found[0] == eager[0] != []
    torch.testing.assert_close(found[1], eager[1])
