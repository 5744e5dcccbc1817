"""Capture and Patch on functions that stay compiled: aot_eager computes the bits of eager mode."""

import amanda
import pytest
import torch
import torch.nn.functional as F
from amanda.tools.capture import Capture, Patch
from torch import nn
from torch.utils.checkpoint import checkpoint


class Net(nn.Module):
    """Views, lists, in-place operators, and a result that is used twice."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 6)
        self.norm = nn.LayerNorm(6)
        self.second = nn.Linear(6, 6)

    def forward(self, x):
        x = self.first(x)
        hidden = F.relu(self.norm(x)) + x
        hidden = hidden.view(-1, 2, 3).transpose(1, 2).reshape(-1, 6)
        left, right = hidden.chunk(2, -1)
        x = torch.cat([right, left], -1) + self.second(hidden)
        return x.clone().add_(1).softmax(-1)


class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Net()

    def forward(self, x):
        return checkpoint(self.inner, x, use_reentrant=False) * 2


def trained(*tools, compile=True, make=Net, steps=1, **how):
    """The output, and gradients, of the last step."""
    torch.compiler.reset()
    torch.manual_seed(0)
    model, x = make(), torch.randn(5, 4, requires_grad=True)
    call = torch.compile(model, backend="aot_eager") if compile else model
    with amanda.apply(*tools, **how):
        for _ in range(steps):
            model.zero_grad()
            output = call(x)
            output.square().sum().backward()
    return [output.detach(), x.grad, *(parameter.grad for parameter in model.parameters())]


def as_tuple(value):
    return value if isinstance(value, tuple) else (value,)


def equal(some, others):
    return len(some) == len(others) and all(map(torch.equal, some, others))


@pytest.mark.parametrize("make", [Net, Checkpointed])
def test_results_and_gradients_have_the_names_and_bits_of_eager_mode(make):
    eager, compiled = Capture(grad=True), Capture(grad=True)
    expected = trained(eager, compile=False, make=make)
    found = trained(compiled, make=make)
    assert equal(found, expected)
    assert equal(found, trained(amanda.Tool("nothing"), make=make, compiled="opaque"))
    assert list(compiled) == list(eager)
    for name in eager:
        assert equal(as_tuple(compiled[name]), as_tuple(eager[name])), name
        assert list(compiled.runs(name)) == list(eager.runs(name))
        assert list(compiled.grads(name)) == list(eager.grads(name)), name
        for run, gradient in eager.grads(name).items():
            assert equal(as_tuple(compiled.grads(name)[run]), as_tuple(gradient)), name
    assert sum(bool(eager.grads(name)) for name in eager) > 10
    assert compiled.evidence().is_complete


def test_runs_are_counted_as_in_eager_mode():
    eager, compiled = Capture("linear", grad=True, runs=(0, 2)), Capture("linear", grad=True, runs=(0, 2))
    trained(eager, compile=False, steps=3)
    trained(compiled, steps=3)
    for name in ("first:linear", "second:linear"):
        assert list(compiled.grads(name)) == [0, 2]
        assert equal(list(compiled.runs(name).values()), list(eager.runs(name).values()))
        assert equal(list(compiled.grads(name).values()), list(eager.grads(name).values()))


def test_a_gradient_that_compiled_code_cannot_show_is_named():
    """An in-place operator's tensor is used again, by its other name."""

    def program(x):
        y = x * 2
        y.mul_(3)
        return y + 1

    capture = Capture(grad=True)
    torch.compiler.reset()
    with amanda.apply(capture):
        torch.compile(program, backend="aot_eager")(torch.ones(2, requires_grad=True)).sum().backward()
    assert torch.equal(capture[":mul_"], torch.full((2,), 6.0))
    with pytest.raises(KeyError):
        capture.grad(":mul_")
    assert "autograd::MulBackward0" in capture.evidence().not_looked_at


PATCHES = {
    "a number": lambda: Patch({"first:linear": 0.0}),
    "a tensor": lambda: Patch({"first": torch.arange(6.0)}),
    "a function": lambda: Patch({":relu": lambda result: result * 2}),
    "a transform": lambda: Patch({"second": torch.ones(6)}, transform=torch.add),
    "positions": lambda: Patch({"second": torch.ones(5, 6)}, positions=(slice(None), 1)),
    "an in-place operator": lambda: Patch({":add_": 0.5}, positions=0),
    "runs": lambda: Patch({"first": 0.5}, runs=1),
    "a view": lambda: Patch({":view": 0.5}),  # eagerly
}


@pytest.mark.parametrize("make", PATCHES.values(), ids=PATCHES)
def test_a_patch_has_the_results_and_gradients_of_eager_mode(make):
    expected = trained(make(), compile=False, steps=2)
    assert equal(trained(make(), steps=2), expected)
    assert not equal(expected, trained(amanda.Tool("nothing"), compile=False, steps=2))


def test_functions_stay_compiled_where_results_can_be_replaced():
    namespaces = set()
    looks = amanda.Tool("looks")
    looks.add_inst_for_op(lambda context: namespaces.add(context.namespace), ops="linear")
    trained(looks, Capture(), Patch({"first:linear": 0.0}))
    assert {namespace.rpartition("/")[2] for namespace in namespaces} == {"compile"}


def test_a_value_that_requires_a_gradient_gets_that_of_eager_mode():
    eager, compiled = (nn.Parameter(torch.ones(6)) for _ in range(2))
    trained(Patch({"first": eager}, transform=torch.add), compile=False)
    trained(Patch({"first": compiled}, transform=torch.add))
    assert torch.equal(compiled.grad, eager.grad)
    assert compiled.grad.count_nonzero() > 0


@pytest.mark.parametrize("name", ["view", "transpose", "chunk"])
def test_a_view_in_compiled_code_is_refused(name):
    text = rf"\[patch\] the result of ':{name}' can't be replaced in a compiled function: it may be a view, "
    with pytest.raises(amanda.Error, match=f'{text}.*; apply it with compiled="eager"'):
        trained(Patch({f":{name}": 0.0}), compiled="graph")


def test_a_captured_result_is_put_into_compiled_code():
    clean = Capture("linear")
    expected = trained(clean)
    patched = trained(Patch({"first:linear": clean["first:linear"]}))
    assert torch.equal(patched[0], expected[0])
