"""Coverage reports count as RecordFunction does, and what they call seen was shown; counting changes nothing."""

import itertools
from collections import Counter

import amanda
import pytest
import torch
from amanda.core.coverage.reasons import REASONS
from coverage_counts import covered, dispatched, everything, recorded, skipped, tool
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True))
        self.body = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Dropout())
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        x = self.stem(x)
        x = x + checkpoint(self.body, x, use_reentrant=False)
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))


def training(model, *inputs):
    model = model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step():
        optimizer.zero_grad()
        model(*inputs).square().mean().backward()
        optimizer.step()

    return step


def reentrant():
    weight = torch.ones(3, requires_grad=True)

    def step():
        checkpoint(lambda x: (x * weight).tanh(), weight.exp(), use_reentrant=True).sum().backward()

    return step


def double_backward():
    def step():
        x = torch.ones(3, requires_grad=True)
        (gradient,) = torch.autograd.grad((x.exp() * x).sum(), x, create_graph=True)
        torch.autograd.backward([gradient.sum(), x.sum()])

    return step


def scripted():
    @torch.jit.script
    def body(x, n: int):
        for _ in range(n):
            x = torch.nn.functional.linear(x, x).relu()
        return x

    def step():
        body(torch.eye(3, requires_grad=True), 2).sum().backward()

    return step


def functional():
    def step():
        torch.func.vmap(torch.func.grad(lambda x: x.sin().sum()))(torch.ones(2, 3))
        with torch.inference_mode():
            F.linear(torch.eye(2), torch.eye(2))

    return step


PROGRAMS = {
    "residual": lambda: training(Residual, torch.ones(2, 3, 4, 4)),
    "transformer": lambda: training(lambda: nn.TransformerEncoderLayer(8, 2, 16), torch.ones(3, 2, 8)),
    "words": lambda: training(
        lambda: nn.Sequential(nn.Embedding(5, 4), nn.Flatten(), nn.Linear(8, 2)), torch.ones(3, 2).long()
    ),
    "reentrant checkpoint": reentrant,
    "double backward": double_backward,
    "scripted": scripted,
    "functional": functional,
}
TOOLS = {
    "everything": everything,
    "a filter": lambda: tool(["linear", "addmm", "relu_", "mul"]),
    "nested": lambda: tool(["linear", "addmm", "mm"], nested=True),
    "routines": lambda: everything(routine=lambda *inputs: None),
    "no routine": lambda: amanda.Tool("idle"),
}


@pytest.mark.parametrize(("program", "tools"), list(itertools.product(PROGRAMS, TOOLS)))
def test_every_call_that_record_function_counts_was_seen_or_has_a_reason(program, tools):
    step = PROGRAMS[program]()
    for _ in range(3):  # TorchScript has compiled, optimizers have their state
        step()
    operators, nodes = recorded(step)
    report = covered(step, TOOLS[tools]())
    own = Counter({row.operator: row.skipped.get("own", 0) for row in report.rows})
    forward, backward = dispatched(report)
    assert forward - own == operators
    assert backward == nodes
    assert nodes or program == "functional"
    assert "lost" not in skipped(report)
    for row in report.rows:
        assert row.dispatched == row.seen + sum(row.skipped.values())
        assert row.skipped.keys() <= REASONS.keys()


def test_a_tool_that_asks_for_everything_is_shown_all_that_is_not_part_of_something_it_is_shown():
    report = covered(training(Residual, torch.ones(2, 3, 4, 4)), everything(routine=lambda *inputs: None))
    assert skipped(report).keys() <= {"inner", "backward", "noise", "own"}
    assert report.total("backward").skipped == {}


def test_seen_is_what_the_routines_ran_on():
    ran = []
    looking = amanda.Tool("looking")
    looking.add_inst_for_op(lambda c: c.insert_before_op(lambda name: ran.append(name), inputs=[], name=c.op.name))
    looking.add_inst_for_op(
        lambda c: c.insert_before_backward_op(lambda name: ran.append(name), grad_outputs=[], name=c.backward_op.name),
        backward=True,
    )
    report = covered(training(Residual, torch.ones(2, 3, 4, 4)), looking)
    assert {row.operator: row.seen for row in report.rows if row.seen} == Counter(ran)


@pytest.mark.parametrize("program", PROGRAMS)
def test_counting_changes_no_bit(program):
    class Results(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            result = function(*args, **kwargs or {})
            if "empty" not in str(function):
                made.extend(x.clone() for x in tree_leaves(result) if isinstance(x, torch.Tensor))
            return result

    def outcome(scope):
        torch.manual_seed(0)
        made.clear()
        step = PROGRAMS[program]()
        with scope, Results():
            step()
        return [*made, torch.get_rng_state()]

    made = []

    plain, counted = (outcome(amanda.apply(everything(), coverage=coverage)) for coverage in (False, True))
    assert len(plain) > 5
    for one, other in zip(plain, counted, strict=True):
        assert torch.equal(one, other)


def test_gradients_are_bit_equal_and_a_second_pass_counts_again():
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(3, 4), nn.ReLU(inplace=True), nn.Linear(4, 1)), torch.randn(5, 3)
    model(x).sum().backward()
    expected = [parameter.grad.clone() for parameter in model.parameters()]
    with amanda.apply(everything(), coverage=True) as scope:
        for passes in (1, 2, 3):
            model.zero_grad()
            model(x).sum().backward()
            assert all(torch.equal(p.grad, e) for p, e in zip(model.parameters(), expected, strict=True))
            row = scope.coverage().row("autograd::AccumulateGrad")  # once analysed, it is still shown
            assert (row.dispatched, row.seen) == (4 * passes, 4 * passes)
