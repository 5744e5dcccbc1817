"""When backward operators are seen: once per execution, while the scope object they were made in is open."""

import threading

import amanda
import pytest
import torch
import torch.nn.functional as F
from backward_tools import Scheduled, Watcher, same

nn = torch.nn
SIN = ["SinBackward0<", "SinBackward0>"]


def leaf(*shape):
    return torch.randn(*shape, requires_grad=True)


# ---- which nodes, how often ------------------------------------------------------------------------------------------


def test_the_order_is_the_engines():
    tool, x = Watcher(), leaf(3)
    with amanda.apply(tool):
        (x * 2).sin().sum().backward()
    order = ["SumBackward0", "SinBackward0", "MulBackward0", "AccumulateGrad"]
    assert tool.trace == [name + side for name in order for side in "<>"]


def test_a_retained_graph_fires_each_time():
    tool, x = Watcher(ops="sin"), leaf(3)
    with amanda.apply(tool):
        y = (x * 2).sin().sum()
        for _ in range(3):
            y.backward(retain_graph=True)
    assert tool.trace == SIN * 3


def test_only_nodes_that_run_fire():
    x, w = leaf(3), leaf(3)
    tool = Watcher()
    with amanda.apply(tool):
        h = x.exp()
        y = (h.sin() * w).sum()
        torch.autograd.grad(y, h, retain_graph=True)
        assert tool.count() == {"SumBackward0": 1, "MulBackward0": 1, "SinBackward0": 1}
        tool.trace.clear()
        torch.autograd.grad(y, w, retain_graph=True)
        assert tool.count() == {"SumBackward0": 1, "MulBackward0": 1}
        tool.trace.clear()
        y.backward(inputs=[w])
        assert tool.count() == {"SumBackward0": 1, "MulBackward0": 1, "AccumulateGrad": 1}
    assert x.grad is None


def test_gradient_accumulation():
    tool, layer = Watcher(ops="linear"), nn.Linear(3, 3)
    with amanda.apply(tool):
        for _ in range(3):
            layer(torch.ones(2, 3)).sum().backward()
    assert tool.count() == {"AddmmBackward0": 3, "TBackward0": 3, "AccumulateGrad": 6}
    assert layer.bias.grad.tolist() == [6.0] * 3


def test_layers_frozen_and_unfrozen_between_steps():
    """The operator's nodes change, and each step is as without a tool."""
    frozen = [False, True, False, True, True, False]

    def train():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
        grads = []
        for freeze in frozen:
            model[0].requires_grad_(not freeze)
            model[1].weight.requires_grad_(freeze)
            model.zero_grad()
            model(torch.ones(2, 3)).sum().backward()
            grads += [p.grad.clone() for p in model.parameters() if p.grad is not None]
        return grads

    expected = train()
    tool = Watcher(ops="linear")
    with amanda.apply(tool):
        assert same(train(), expected)
    assert tool.count()["AccumulateGrad"] == sum(2 if freeze else 3 for freeze in frozen)


# ---- scopes ----------------------------------------------------------------------------------------------------------


def test_backward_fires_while_the_scope_object_is_open_again():
    tool, x = Watcher(ops="sin"), leaf(3)
    scope = amanda.apply(tool)
    with scope:
        y = (x * 2).sin().sum()
    y.backward(retain_graph=True)
    assert tool.trace == []
    with amanda.apply(tool):  # the same tool, another scope
        y.backward(retain_graph=True)
    assert tool.trace == []
    with scope:
        y.backward(retain_graph=True)
    assert tool.trace == SIN
    y.backward()
    assert tool.trace == SIN


def test_a_forward_outside_is_untouched():
    tool, x = Watcher(), leaf(3)
    y = (x * 2).sin()
    with amanda.apply(tool):
        y.sum().backward()
    assert tool.trace == ["SumBackward0<", "SumBackward0>"]


def test_forward_in_an_inner_scope_backward_in_the_outer():
    trace, x = [], leaf(3)
    outer, inner = (Watcher(ops="sin", name=name, trace=trace) for name in ("outer", "inner"))
    with amanda.apply(outer):
        with amanda.apply(inner):
            y = (x * 2).sin().sum()
            y.backward(retain_graph=True)
        trace.append("|")
        y.backward()
    assert trace == ["outer:SinBackward0<", "inner:SinBackward0<", "outer:SinBackward0>", "inner:SinBackward0>", "|",
                     "outer:SinBackward0<", "outer:SinBackward0>"]  # fmt: skip


def test_forward_in_the_outer_scope_backward_in_an_inner():
    outer, inner, x = Watcher(ops="sin"), Watcher(ops="sin"), leaf(3)
    with amanda.apply(outer):
        y = (x * 2).sin().sum()
        with amanda.apply(inner):
            y.backward()
    assert (outer.trace, inner.trace) == (SIN, [])


def test_disabled():
    tool, x = Watcher(ops="sin"), leaf(3)
    edit = Scheduled("before", "SinBackward0", lambda g: g * 0)
    with amanda.apply(tool, edit):
        y = (x * 2).sin().sum()
        with amanda.disabled():
            y.backward(retain_graph=True)
            assert tool.trace == []
            assert x.grad.all()
            z = (x * 2).sin().sum()
        z.backward()
        assert tool.trace == []
        y.backward()
    assert tool.trace == SIN


def test_scopes_opened_and_left_in_the_middle_of_a_backward():
    first, second, x = Watcher(), Watcher(), leaf(3)
    scopes = amanda.apply(first), amanda.apply(second)
    with scopes[0], scopes[1]:
        h = x * 2
        y = h.sin().sum()

    def change(g):
        scopes[0].__exit__(None, None, None)
        scopes[1].__enter__()

    h.register_hook(change)
    scopes[0].__enter__()
    y.backward()
    scopes[1].__exit__(None, None, None)
    assert first.trace == ["SumBackward0<", "SumBackward0>", *SIN]
    assert second.trace == ["MulBackward0<", "MulBackward0>", "AccumulateGrad<", "AccumulateGrad>"]


def test_a_routine_that_leaves_its_own_scope():
    x, seen = leaf(3), []
    tool = Scheduled("before", "SinBackward0", lambda g: seen.append("left") or scope.__exit__(None, None, None))
    scope = amanda.apply(tool, Scheduled("after", "MulBackward0", lambda *g: seen.append("late"), name="late"))
    scope.__enter__()
    (x * 2).sin().sum().backward()
    assert seen == ["left"]
    assert torch.equal(x.grad, (x * 2).detach().cos() * 2)


# ---- backward inside backward ----------------------------------------------------------------------------------------


class Reentrant(torch.autograd.Function):
    """Its backward runs a backward pass, on a graph that its forward made."""

    @staticmethod
    def forward(ctx, x):
        with torch.enable_grad():
            ctx.x = x.detach().requires_grad_()
            ctx.y = ctx.x.sin().sum()
        return ctx.y.detach()

    @staticmethod
    def backward(ctx, g):
        ctx.y.backward(g, retain_graph=True)
        result, ctx.x.grad = ctx.x.grad, None
        return result


def test_reentrant_backward():
    tool, x = Watcher(), leaf(3)
    with amanda.apply(tool):
        y = Reentrant.apply(x)
        for _ in range(2):
            x.grad = None
            y.backward(retain_graph=True)
            assert torch.equal(x.grad, x.detach().cos())
    inner = [name + side for name in ("SumBackward0", "SinBackward0", "AccumulateGrad") for side in "<>"]
    assert tool.trace == ["ReentrantBackward<", *inner, "ReentrantBackward>", "AccumulateGrad<", "AccumulateGrad>"] * 2


@pytest.mark.parametrize("point", ["before", "after", "replace"])
def test_a_backward_inside_a_routine_is_the_tools_own(point):
    x, watcher = leaf(3), Watcher()

    def routine(g):
        with torch.enable_grad():
            v = torch.ones(3, requires_grad=True)
            (v * 2).sin().sum().backward()
        return g * 2

    with amanda.apply(watcher, Scheduled(point, "SinBackward0", routine, ops="sin")):
        for _ in range(2):
            x.grad = None
            x.sin().sum().backward()
            assert x.grad is not None
    assert watcher.count() == {"SumBackward0": 2, "SinBackward0": 2, "AccumulateGrad": 2}


# ---- threads ---------------------------------------------------------------------------------------------------------


def in_threads(work, count=6):
    errors = []

    def guarded():
        try:
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


@pytest.mark.parametrize("point", ["look", "replace"])
def test_threads_over_one_graph(point):
    tool, w = Watcher(ops="sin"), leaf(20)
    scope = amanda.apply(tool, Scheduled("replace", "SinBackward0", lambda g: g * 1)) if point == "replace" else None
    scope = scope or amanda.apply(tool)
    for _ in range(2):
        with scope:
            y = w
            for _ in range(20):
                y = y.sin()
            y = y.sum()
            expected = torch.autograd.grad(y, w, retain_graph=True)[0]
    tool.trace.clear()

    def work():
        with scope:
            for _ in range(5):
                assert torch.equal(torch.autograd.grad(y, w, retain_graph=True)[0], expected)

    in_threads(work)
    assert tool.count() == tool.count("<") == {"SinBackward0": 6 * 5 * 20}


def test_threads_over_graphs_of_their_own():
    tool, model = Watcher(ops="linear"), nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 1))
    scope = amanda.apply(tool)
    x = torch.ones(2, 3)
    expected = torch.autograd.grad(model(x).sum(), model[0].weight)[0]

    def work():
        with scope:
            for _ in range(10):
                assert torch.equal(torch.autograd.grad(model(x).sum(), model[0].weight)[0], expected)

    in_threads(work)
    assert tool.count() == tool.count("<") == {"AddmmBackward0": 120, "TBackward0": 60}


def test_another_threads_backward_without_a_scope_is_untouched():
    tool, x = Watcher(), leaf(3)
    with amanda.apply(tool):
        y = x.sin().sum()
        in_threads(lambda: y.backward(retain_graph=True), 1)
    assert tool.trace == []


def test_functional_linear_is_seen_once_where_two_tools_ask():
    first, second = Watcher(ops="linear"), Watcher(ops=["linear", "addmm"])
    w = leaf(2, 3)
    with amanda.apply(first), amanda.apply(second):
        F.linear(torch.ones(2, 3), w, leaf(2)).sum().backward()
    assert first.count() == second.count() == {"AddmmBackward0": 1, "TBackward0": 1, "AccumulateGrad": 2}
