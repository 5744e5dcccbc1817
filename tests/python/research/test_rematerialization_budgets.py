"""Rematerialization's budgets: errors that name one that works, and settings that are refused."""

import re

import amanda
import pytest
import torch
from amanda import _rematerialization
from amanda.research.rematerialization import Rematerialization
from budget_runs import UNLIMITED, bert, convolutions, least, mlp, resnet, sufficient, total
from evicted_programs import attention, leaf, lists_and_several_results, recurrent, views

pytestmark = pytest.mark.usefixtures("one_thread")  # the tensors are small


def test_a_change_of_what_autograd_saved_is_an_error_as_ever():
    def program():
        w = leaf(8)
        y = w.exp()
        z = (y.sin() * y).tanh().sum()
        with torch.no_grad():
            y.add_(1)
        z.backward()

    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        program()
    for budget in (1, UNLIMITED):
        tool = Rematerialization(budget)
        with (
            pytest.raises(
                RuntimeError, match=r"modified by an inplace operation: .* is at version 1; expected version 0"
            ),
            amanda.apply(tool),
        ):
            program()


def test_a_change_outside_the_scope_that_makes_recomputing_impossible_is_an_error():
    w, b = leaf(8), leaf(8)
    with pytest.raises(amanda.Error, match="too small"), amanda.apply(Rematerialization(1)):
        y = (w + b).exp().sin().tanh().sum()
    with torch.no_grad():
        b.add_(1)
    with pytest.raises(RuntimeError, match="changed in place where the tool does not see it"):
        y.backward()


def test_a_graph_of_the_scope_runs_backward_outside():
    w = leaf(8)
    with pytest.raises(amanda.Error, match="too small"), amanda.apply(Rematerialization(1)):
        y = w.exp().sin().tanh().sum()
    y.backward()
    x = w.detach().requires_grad_()
    x.exp().sin().tanh().sum().backward()
    assert torch.equal(w.grad, x.grad)


def test_the_error_comes_after_the_pass_and_before_the_optimizer_changes_anything():
    torch.manual_seed(0)
    model, loss_of = mlp()
    optimizer = torch.optim.Adam(model.parameters())
    before = [parameter.detach().clone() for parameter in model.parameters()]

    def step():
        with amanda.apply(Rematerialization(1)):
            loss_of(model).backward()
            gradients.extend(parameter.grad for parameter in model.parameters())
            optimizer.step()

    gradients = []
    with pytest.raises(amanda.Error, match=r"^\[rematerialization\] a budget of 1 bytes is too small: .* needed \d+"):
        step()
    for parameter, old in zip(model.parameters(), before, strict=True):
        assert torch.equal(parameter, old)
    model.zero_grad()
    loss_of(model).backward()
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        assert torch.equal(parameter.grad, gradient)


def test_the_least_budget_of_the_error_works_here_and_a_byte_less_does_not():
    def step(budget):
        torch.manual_seed(0)
        model, loss_of = mlp()
        tool = Rematerialization(budget, costs="equal")
        with amanda.apply(tool):
            loss_of(model).backward()
        return tool

    with pytest.raises(amanda.Error, match="too small") as caught:
        step(1)
    budget = least(caught.value)
    assert step(budget).peak == budget
    with pytest.raises(amanda.Error, match=f"may work, from {budget} on"):
        step(budget - 1)


def branches():
    """Values that are computed from several others, in chains of different lengths, some of which nobody saves."""
    a, b = torch.linspace(-1, 1, 3000).requires_grad_(), torch.randn(3000)
    x, y = (a * 2).sin(), (a + b).exp()
    del b
    for _ in range(4):
        x, y = (x * y).tanh() + x, (y - x).cos().cumsum(0)
    torch.stack([x, y.sigmoid(), x * y]).softmax(0)[:, ::2].square().sum().backward()
    return (a.grad,)


def of_model(make):
    def step():
        model, loss_of = make()
        loss_of(model).backward()
        return [parameter.grad for parameter in model.parameters()]

    return step


@pytest.mark.parametrize("heuristic", ["dtr", "msps"])
@pytest.mark.parametrize(
    "program",
    [
        branches,
        attention,
        recurrent,
        views,
        lists_and_several_results,
        *map(of_model, (mlp, bert, resnet, convolutions)),
    ],
    ids=lambda program: program.__qualname__,
)
def test_the_budget_that_the_error_names_works_however_long_operators_take(program, heuristic, monkeypatch):
    """It is what the program takes without evictions, wherever evictions lead."""

    def run(budget, seed):
        made = _rematerialization.Rematerializer
        with monkeypatch.context() as patch:
            patch.setattr(_rematerialization, "Rematerializer", lambda *options: made(*options, seed=seed))
            tool = Rematerialization(budget, heuristic)
        torch.manual_seed(0)
        with amanda.apply(tool):
            program()
        return tool

    most = run(UNLIMITED, 0).peak
    named, bounds = set(), []
    for seed in range(12):
        budget = (1, most // 4, most // 2)[seed % 3]
        try:
            run(budget, seed)
        except amanda.Error as error:
            named.add(sufficient(error))
            bounds.append((budget, least(error), sufficient(error)))
    assert named, "no budget was too small"
    assert all(budget < needed <= works for budget, needed, works in bounds)
    assert min(named) >= most, "less is not enough in every run"
    for budget in named:
        for seed in range(3):
            tool = run(budget, seed)
            assert (tool.peak, total(tool, "evicted")) == (most, 0)


def test_the_error_does_not_hide_another_one():
    def fails():
        leaf(8).exp().sum().backward()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), amanda.apply(Rematerialization(1)):
        fails()


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        (("1 GB",), TypeError, "budget= is a number of bytes, got '1 GB'; write 500_000_000 for 500 MB"),
        ((1e9,), TypeError, "budget= is a number of bytes, got 1000000000.0"),
        ((0,), ValueError, "budget= is a positive number of bytes, got 0"),
        ((-5,), ValueError, "budget= is a positive number of bytes, got -5"),
        ((1, "best"), ValueError, 'heuristic= is "dtr", "dtr_local", "msps", "lru" or "size", got \'best\''),
    ],
)
def test_what_a_budget_cannot_be(arguments, kind, message):
    with pytest.raises(kind, match=re.escape(f"[rematerialization] {message}")):
        Rematerialization(*arguments)


def test_costs_are_times_or_equal():
    with pytest.raises(ValueError, match=re.escape('[rematerialization] costs= is "time" or "equal", got \'flops\'')):
        Rematerialization(1, costs="flops")


def test_two_budgets_on_a_thread_are_refused():
    with amanda.apply(Rematerialization(UNLIMITED)):
        with (
            pytest.raises(amanda.Error, match="another budget is in force on this thread; leave its scope first"),
            amanda.apply(Rematerialization(UNLIMITED)),
        ):
            pass
        w = leaf(4)
        w.exp().sum().backward()
        assert torch.equal(w.grad, w.exp())
