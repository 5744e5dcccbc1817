"""SubgraphRewriting in programs that change, on threads, in other scopes and in every regime."""

import copy
import threading

import amanda
import pytest
import torch
import torch.nn.functional as F
from amanda.tools.rewriting import SubgraphRewriting
from equal_tensors import same
from rewritten_layers import (
    LINEAR_GELU,
    OF_ALL,
    Layer,
    LinearGelu,
    Scaled,
    counts,
    gelu_of,
    gradients,
    train,
    with_dropout,
)
from tool_regimes import REGIMES, in_regime
from torch.utils.checkpoint import checkpoint

# ---- programs that change --------------------------------------------------------------------------------------------


def test_other_sizes_run_as_written_once():
    layer, rewriting = Layer(), SubgraphRewriting(LINEAR_GELU, gelu_of)
    with amanda.apply(rewriting), torch.no_grad():
        for size in (2, 3, 2, 3, 3, 4):
            x = torch.randn(size, 4)
            found = layer(x)
            with amanda.disabled():
                assert torch.equal(found, layer(x))
    assert counts(rewriting) == [(3, 0)]


def test_control_flow_that_changes_gets_what_the_operators_compute():
    layer, rewriting, other = torch.nn.Linear(4, 5), SubgraphRewriting(LINEAR_GELU, gelu_of), torch.nn.Linear(4, 5)
    order, kept = "as traced", []

    def program(x):
        h = layer(x)
        if order == "another":
            h = other(x)
        elif order == "of the run before":
            h = kept[-1]
        elif order == "sum":
            h = h + 1
        kept.append(h)
        return F.gelu(h)

    x = torch.randn(3, 4)
    with amanda.apply(rewriting):
        for each in ("as traced", "as traced", "another", "of the run before", "sum", "as traced"):
            order = each
            found, length = program(x * 1), len(kept)
            with amanda.disabled():
                kept_before = kept[:]
                kept[:] = kept[: length - 1]
                expected = program(x * 1)
                kept[:] = kept_before
            assert torch.equal(found, expected), each
    assert rewriting.rows()[0].why == "the result of aten::linear is read by aten::add.Tensor"


def test_not_implemented_runs_the_operators_as_written():
    layer, ask = Layer(), [True, False, True]
    x = torch.randn(3, 4, requires_grad=True)

    def sometimes(linear, gelu):
        return torch.zeros(3, 5, requires_grad=True) * 1 if ask.pop() else NotImplemented

    rewriting, found = SubgraphRewriting(LINEAR_GELU, sometimes), []
    with amanda.apply(rewriting):
        for _ in range(4):
            layer.zero_grad()
            y = layer(x)
            y.sum().backward()
            found.append((y, layer.linear.weight.grad))
    layer.zero_grad()
    (y := layer(x)).sum().backward()
    same(found[2], (y, layer.linear.weight.grad))
    assert [bool(y.any()) for y, _ in found] == [True, False, True, False]
    assert counts(rewriting) == [(2, 1)]


def test_under_torch_func_operators_run_as_written():
    layer, rewriting = Layer(), SubgraphRewriting(LINEAR_GELU, gelu_of)
    x = torch.randn(3, 4)
    with amanda.apply(rewriting):
        layer(x), layer(x[0])
        found = [torch.vmap(layer)(x), torch.func.jacrev(layer)(x[0]), torch.func.jvp(layer, (x,), (x,))[1]]
    same(found, [torch.vmap(layer)(x), torch.func.jacrev(layer)(x[0]), torch.func.jvp(layer, (x,), (x,))[1]])


def test_several_threads_rewrite_at_once():
    layer, rewriting, wrong = Layer(), SubgraphRewriting(LINEAR_GELU, gelu_of), []
    scope = amanda.apply(rewriting)
    with scope:
        layer(torch.ones(3, 4))

    def work(value):
        x = torch.full((3, 4), float(value))
        with scope:
            wrong.extend(value for _ in range(50) if not torch.equal(layer(x), expected[value]))

    expected = [layer(torch.full((3, 4), float(value))) for value in range(4)]
    threads = [threading.Thread(target=work, args=(value,)) for value in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert counts(rewriting) == [(200, 0)]


def test_another_scope_knows_the_matches():
    layer, rewriting, x = Layer(), SubgraphRewriting(LINEAR_GELU, gelu_of), torch.randn(3, 4)
    for _ in range(3):
        with amanda.apply(rewriting), amanda.apply(rewriting):
            layer(x)
    assert counts(rewriting) == [(2, 0)]


def test_other_tools_skip_what_has_no_elements_yet():
    from amanda.tools.statistics import OpStatistics

    layer, rewriting, x = Layer(), SubgraphRewriting(LINEAR_GELU, gelu_of), torch.randn(3, 4)
    for order in (0, 1):
        statistics = OpStatistics()
        with amanda.apply(*[rewriting, statistics][:: 1 if order else -1]):
            layer(x)
            layer(x)
        assert rewriting.rows()[0].why == ""
        assert statistics.skipped.keys() <= {"subclass"}


# ---- regimes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("regime", REGIMES)
def test_a_regime_trains_as_the_module_by_hand(regime):
    torch.manual_seed(0)
    model = torch.nn.Sequential(Layer(), torch.nn.Linear(5, 4), Layer())
    by_hand, x = copy.deepcopy(model), torch.randn(6, 4)
    for layer in (by_hand[0], by_hand[2]):
        linear = layer.linear
        layer.forward = lambda x, linear=linear: LinearGelu.apply(*cast(x, linear.weight, linear.bias))
    rewriting = SubgraphRewriting(
        LINEAR_GELU, lambda linear, gelu: LinearGelu.apply(*cast(linear.input, linear.weight, linear.bias))
    )
    with amanda.apply(rewriting), in_regime(regime, model) as program:
        program(x)  # the traced run
        losses = train(model, lambda: program(x), 20)
    with amanda.disabled(), in_regime(regime if regime != "compiled code" else "checkpointing", by_hand) as program:
        expected = train(by_hand, lambda: program(x), 20)
    same([*losses, *model.parameters()], [*expected, *by_hand.parameters()])
    same(gradients(model), gradients(by_hand))


def cast(*tensors):
    """As autocast would."""
    dtype = torch.bfloat16 if torch.is_autocast_enabled("cpu") else torch.float32
    return [tensor.to(dtype) for tensor in tensors]


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpoint_recomputes_what_it_ran(reentrant):
    """In the first step, too, in which one run of a shared layer is traced, and the next one could be rewritten."""
    model, runs = Scaled(), []

    def with_noise(scores, scaled, weights, dropped, mixed):
        runs.append(1)
        scale = torch.rand(()) * mixed.other.exp()  # other numbers, and other tensors for the backward pass
        return with_dropout(scores, scaled, weights, dropped, mixed) * scale.sin()

    rewriting, x = SubgraphRewriting(OF_ALL, with_noise), torch.randn(2, 3, 4, 8, requires_grad=True)

    def step(checkpointed):
        model.zero_grad()
        torch.manual_seed(2)
        y = x
        for _ in range(3):
            y = checkpoint(model, y, use_reentrant=reentrant) if checkpointed else model(y)
        y.sum().backward()
        return [y, model.gain.grad.clone()]

    with amanda.apply(rewriting):
        found = [step(True) for _ in range(3)]
    if not reentrant:
        same(found[0], step(False))
    with amanda.apply(SubgraphRewriting(OF_ALL, with_noise)):
        model(x)
        model(x * 1)
        expected = step(False)
    same(found[2], expected)
    assert len(runs) > 6
