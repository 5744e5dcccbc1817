"""What stands in front of PyTorch's own functions is invisible to torch.compile: results and graph breaks stay."""

from __future__ import annotations

import functools

import amanda
import pytest
import torch
from amanda.drivers.torch import backward_pass, functions
from amanda.drivers.torch.identity import operands, parameter_names
from torch import nn
from torch._dynamo import convert_frame
from torch._dynamo.utils import counters
from torch.utils.checkpoint import checkpoint


class Sine(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, k=2):
        ctx.save_for_backward(x)
        ctx.k = k
        return x.sin() * k

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * x.cos() * ctx.k, None


class SineLate(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x, k=2):
        return x.sin() * k

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])
        ctx.k = inputs[1]

    backward = staticmethod(Sine.backward)


class SineOwn(Sine):
    @classmethod
    def apply(cls, *args):
        return super().apply(*args) + 1


class Swapping(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("steps", torch.zeros(3))
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x):
        self.steps = self.steps + 1
        return (x * self.weight + self.steps).relu()


def hooked(method, hook, part=0):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3))
    getattr(net[part], method)(hook)
    return net


def broken(x):
    y = x.relu()
    torch._dynamo.graph_break()
    return Sine.apply(y) + 1


def differentiating(x):
    y = (x * 2).relu()
    y.sum().backward()
    return x.grad * 2


# What stands in the place of PyTorch's functions, or is called by them.
OURS = {
    functions._apply.__code__,
    backward_pass._QuietEngine.run_backward.__code__,
    backward_pass._caught_backward.__code__,
    operands._on_parameter.__code__,
    operands._on_buffer.__code__,
    parameter_names._on_parameter.__code__,
}
alias, partial = Sine.apply, functools.partial(Sine.apply, k=3)
# Whole graphs: fullgraph=True changes nothing.
TRACED = {
    "apply": lambda: lambda x: Sine.apply(x * 2, 3) + 1,
    "a late context": lambda: lambda x: SineLate.apply(x * 2, 3) + 1,
    "an alias": lambda: lambda x: alias(x * 2) + 1,
    "a partial": lambda: lambda x: partial(x * 2) + 1,
    "getattr": lambda: lambda x: getattr(Sine, "app" + "ly")(x) + 1,
    "in a checkpoint": lambda: lambda x: checkpoint(lambda x: Sine.apply(x) * 2, x, use_reentrant=False) + 1,
}
PROGRAMS = {
    **TRACED,
    "an apply of its own": lambda: lambda x: SineOwn.apply(x * 2) + 1,
    "its function": lambda: lambda x: Sine.apply.__func__(Sine, x) + 1,
    "vmap": lambda: lambda x: torch.vmap(lambda row: SineLate.apply(row, 3))(x) + 1,
    "after a graph break": lambda: broken,
    "in a checkpoint that is reentrant": lambda: lambda x: checkpoint(Sine.apply, x * 1, use_reentrant=True) + 1,
    "a backward pass": lambda: differentiating,
    "a buffer that is exchanged": Swapping,
    "a hook on gradients": lambda: hooked("register_full_backward_hook", lambda module, inputs, outputs: None),
    "a hook that edits": lambda: hooked("register_full_backward_hook", lambda module, inputs, _: (inputs[0] * 2,), 1),
    "a hook before": lambda: hooked("register_full_backward_pre_hook", lambda module, outputs: None),
    "a hook before that edits": lambda: hooked(
        "register_full_backward_pre_hook", lambda module, outputs: (outputs[0] * 2,), 1
    ),
}


def outcome(make):
    """Two steps' results and gradients, or the error; the graph breaks; and our functions that Dynamo has looked at."""
    torch._dynamo.reset()
    counters.clear()
    x = torch.linspace(-1, 1, 6).reshape(2, 3).requires_grad_()
    compiled = torch.compile(make(), backend="aot_eager")
    steps = []
    try:
        for _ in range(2):
            x.grad = None
            y = compiled(x)
            if y.requires_grad:
                y.sum().backward()
            steps.append((y.tolist(), x.grad.tolist()))
    except Exception as error:
        steps.append((type(error), str(error).partition("\n")[0]))
    breaks = sorted((reason.partition("\n")[0], count) for reason, count in counters["graph_break"].items())
    ours = {code.co_qualname for known in convert_frame.input_codes.seen if (code := known()) and code in OURS}
    return steps, breaks, ours


@pytest.fixture(autouse=True)
def fresh_compiler():
    yield
    torch._dynamo.reset()


def looking():
    tool = amanda.Tool()
    tool.add_inst_for_op(lambda context: context.insert_before_op(lambda *inputs: None), ops="relu")
    return tool


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.filterwarnings("ignore::UserWarning:torch")
def test_compiled_programs_are_as_without_a_scope(name):
    expected = outcome(PROGRAMS[name])
    assert name not in TRACED or expected[1] == [], "without a graph break"
    for policy in ("graph", "opaque"):
        with amanda.apply(looking(), compiled=policy):
            assert outcome(PROGRAMS[name]) == expected, policy
    assert outcome(PROGRAMS[name]) == expected


@pytest.mark.parametrize("name", [name for name in PROGRAMS if "hook" in name])
def test_hooks_on_gradients_run_in_a_scope_that_runs_compiled_functions_eagerly(name):
    (expected, _, _), x = outcome(PROGRAMS[name]), torch.linspace(-1, 1, 6).reshape(2, 3).requires_grad_()
    compiled = torch.compile(PROGRAMS[name](), backend="aot_eager")
    with amanda.apply(looking(), compiled="eager"):
        y = compiled(x)
        y.sum().backward()
    assert (y.tolist(), x.grad.tolist()) == expected[0]
