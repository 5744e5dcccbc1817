"""GradientCuts: each way in which a parameter gets no gradient, planted, beside a twin that is right."""

import re

import amanda
import pytest
import torch
import torch.nn.functional as F
from amanda.tools.cuts import GradientCuts
from cut_runs import Model, verdicts
from torch.utils.checkpoint import checkpoint


def run(between, *, steps=3, loss=lambda y: y.square().mean(), optimizer=True):
    """Trains such a model; the tool, the model, and which parameters the graph of the last loss reaches."""
    torch.manual_seed(0)
    model, tool = Model(between), GradientCuts()
    made = torch.optim.SGD(model.parameters(), 0.01) if optimizer else None
    with amanda.apply(tool):
        for _ in range(steps):
            value = loss(model(torch.randn(3, 4)))
            model.zero_grad()
            reached = leaves(value)
            value.backward()
            if made:
                made.step()
    return tool, model, reached


def leaves(loss):
    """The addresses of the leaves that autograd's graph reaches: an independent oracle."""
    found, seen, queue = set(), set(), [loss.grad_fn]
    while queue:
        node = queue.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            found.add(id(node.variable))
        queue.extend(following for following, _ in node.next_functions)
    return found


def check_oracles(tool, model, reached):
    """The verdicts against `.grad` and the graph of the last pass."""
    for name, parameter in model.named_parameters():
        verdict = verdicts(tool)[name]
        if verdict == "none":
            assert id(parameter) not in reached or parameter.grad is None
            assert parameter.grad is None
        elif verdict == "zero":
            assert not parameter.grad.any()
        else:
            assert id(parameter) in reached
            assert parameter.grad.any()


class Silent(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return None


class Zeros(Silent):
    @staticmethod
    def backward(ctx, gradient):
        return gradient * 0


class Right(Silent):
    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


def no_grad(h, model):
    with torch.no_grad():
        return h.relu() * 2


def inference(h, model):
    with torch.inference_mode():
        h = h.relu()
    return h.clone()


def tolist(h, model):
    numbers = h.tolist()
    return torch.tensor(numbers)


def item(h, model):
    return torch.full((3, 4), h.sum().item())


def new_numpy(h, model):
    array = h.detach().numpy() + 1
    return torch.from_numpy(array)


def made_anew(h, model):
    return torch.tensor([[float(x) for x in row] for row in h.detach()])


def overwritten(h, model):
    h = h * 1
    h.fill_(0.5)
    return h


def saved_overwritten(h, model):
    h = torch.sigmoid(h)
    h.data.zero_()
    return h + 1


def leaf_written(h, model):
    model.buffer = model.__dict__.get("buffer", torch.zeros(3, 4, requires_grad=True))
    with torch.no_grad():
        model.buffer.copy_(h)
    return model.buffer * 1


def buffer_in_place(h, model):
    """The result requires a gradient, of another parameter."""
    result = model.last.bias * torch.ones(3, 1)
    with torch.no_grad():
        result.add_(h)
    return result


def reentrant(h, model):
    return checkpoint(lambda x: F.linear(x, model.first.weight, model.first.bias), h.detach(), use_reentrant=True)


def numpy_view(h, model):
    return torch.from_numpy(h.detach().numpy())


def new_leaf(h, model):
    return h.detach().requires_grad_()


def into_a_slice(h, model):
    result = torch.zeros(3, 4)
    for i in range(3):
        result[i] = h[i].detach()
    return result


CUT = [  # the program, the reason, the operator at which the path ends, the last one before it
    (lambda h, model: h.relu().detach(), "detach", "detach", "relu"),
    (lambda h, model: h.relu().detach_(), "detach", "detach_", "relu"),
    (new_leaf, "detach", "detach", "linear"),
    (into_a_slice, "detach", "detach", "select"),
    (no_grad, "no_grad", "relu", "linear"),
    (buffer_in_place, "no_grad", "add_", "linear"),
    (inference, "inference_mode", "relu", "linear"),
    (lambda h, model: h.relu().data, "data", "linear", "relu"),
    (lambda h, model: h.relu().data * 2, "data", "mul", "relu"),
    (lambda h, model: F.one_hot(h.argmax(-1), 4).float(), "integer", "argmax", "linear"),
    (lambda h, model: h.sort(-1).indices.float(), "integer", "sort", "linear"),
    (lambda h, model: h.long().float(), "integer", "to", "linear"),
    (lambda h, model: (h > 0).float(), "boolean", "gt", "linear"),
    (lambda h, model: torch.ones_like(h), "not differentiable", "ones_like", "linear"),
    (item, "item", "item", "sum"),
    (tolist, "item", "resolve_conj", "linear"),
    (made_anew, "item", "item", "linear"),
    (new_numpy, "item", "resolve_conj", "linear"),
    (leaf_written, "leaf", "copy_", "linear"),
    (lambda h, model: torch.ones(3, 4), "outside the loss", "linear", None),
]


@pytest.mark.parametrize(
    ("between", "reason", "end", "last"), CUT, ids=[f"{i}-{case[1]}" for i, case in enumerate(CUT)]
)
def test_a_cut_is_named(between, reason, end, last):
    tool, model, reached = run(between)
    check_oracles(tool, model, reached)
    assert verdicts(tool) == {"first.weight": "none", "first.bias": "none", "last.weight": "ok", "last.bias": "ok"}
    (found,) = tool.findings()
    assert (found.verdict, found.parameters, found.passes) == ("none", ("first.weight", "first.bias"), 3)
    (cut,) = found.cuts
    names = [place and place.name.rpartition("::")[2].partition(".")[0] for place in (cut.end, cut.last)]
    assert [cut.reason, *names] == [reason, end, last]
    lines = [int(place.source.rpartition(":")[2]) for place in (cut.last, cut.end) if place]
    assert lines == sorted(lines) or reason in ("data", "outside the loss", "item")


ZERO = [
    (lambda h, model: h.round(), "zero derivative", "round"),
    (lambda h, model: h.sign(), "zero derivative", "sign"),
    (lambda h, model: torch.floor(h), "zero derivative", "floor"),
    (lambda h, model: h * 0 + 1, "factor", "mul"),
    (lambda h, model: h @ torch.zeros(4, 4) + 1, "factor", "matmul"),
    (lambda h, model: torch.where(h < 100, torch.ones(()), h), "masked", "where"),
    (lambda h, model: h.masked_fill(h < 100, 1.0), "masked", "masked_fill"),
    (lambda h, model: (h - 100).relu() + 1, "saturated", "relu"),
    (lambda h, model: h.clamp(100, 200), "saturated", "clamp"),
    (overwritten, "overwritten", "fill_"),
    (saved_overwritten, "saved output", "sigmoid"),
    (lambda h, model: Silent.apply(h), "function", "mul"),
    (lambda h, model: Zeros.apply(h), "function", "mul"),
]


@pytest.mark.parametrize("steps", [1, 5])
@pytest.mark.parametrize(("between", "reason", "end"), ZERO, ids=[f"{i}-{case[1]}" for i, case in enumerate(ZERO)])
def test_who_makes_a_gradient_zero_is_named(between, reason, end, steps):
    tool, model, _ = run(between, steps=steps)
    (found,) = tool.findings()
    assert found.parameters == ("first.weight", "first.bias")
    for name in found.parameters:
        gradient = model.get_parameter(name).grad
        assert gradient is None if found.verdict == "none" else not gradient.any()
    (cut,) = found.cuts
    assert (cut.reason, cut.end.name.rpartition("::")[2].partition(".")[0]) == (reason, end)


TWINS = [
    lambda h, model: h.relu(),
    lambda h, model: h + h.detach(),  # a part only
    lambda h, model: h - (h - h.round()).detach(),  # straight through
    lambda h, model: h * (h > 0).float(),
    lambda h, model: h.masked_fill(h < 0, 0.0),
    lambda h, model: torch.where(h < 0, 0.1 * h, h),
    lambda h, model: Right.apply(h),
    lambda h, model: checkpoint(lambda x: x.relu() * 2, h, use_reentrant=False),
    lambda h, model: checkpoint(lambda x: x.relu() * 2, h, use_reentrant=True),
    lambda h, model: h.sort(-1).values,
    lambda h, model: (h.sum().item(), h.tolist(), h.detach().numpy(), h)[3],  # what is logged
    lambda h, model: torch.stack([row.clone() for row in h.unbind()]),
    lambda h, model: torch.compile(lambda x: x.relu() * 2, backend="eager")(h),
]


@pytest.mark.parametrize("between", TWINS, ids=map(str, range(len(TWINS))))
def test_a_program_that_is_right_has_no_finding(between):
    tool, model, reached = run(between)
    check_oracles(tool, model, reached)
    assert tool.findings() == []
    assert set(verdicts(tool).values()) == {"ok"}
    assert re.match(
        r"all 4 parameters that require a gradient got one, in 3 backward passes, \d+ operators", tool.answer()
    )
