"""NaNSentinel: gradients of parameters that no operator made, by hooks and by sums."""

import warnings

import amanda
import pytest
import torch
from amanda.tools.nonfinite import NaNSentinel, NonfiniteError, NonfiniteWarning

ONES = torch.ones(1, 2)
INCOMING, ACCUMULATED = "the gradient that reached {}", "the .grad of {} after an accumulation"


def by_a_hook(layer):
    layer.weight.register_hook(lambda gradient: gradient / 0 * 0)
    layer(ONES).sum().backward()


def by_a_sum(layer):
    large = [(layer.bias * 1e30) * sign for sign in (1e30, -1e30)]
    torch.autograd.backward([one.sum() for one in large])


def by_an_accumulation(layer):
    for sign in (1e30, -1e30):
        ((layer.bias * 1e30) * sign).sum().backward()


def by_a_hook_behind_it(layer):
    def spoil(parameter):
        parameter.grad.mul_(torch.nan)

    layer.bias.register_post_accumulate_grad_hook(spoil)
    layer(ONES).sum().backward()


CASES = [
    (by_a_hook, INCOMING, "weight"),
    (by_a_sum, INCOMING, "bias"),
    (by_an_accumulation, ACCUMULATED, "bias"),
    (by_a_hook_behind_it, ACCUMULATED, "bias"),
]


@pytest.mark.parametrize("waits", [True, False], ids=["at once", "on a device"])
@pytest.mark.parametrize(("run", "what", "parameter"), CASES)
def test_a_gradient_that_no_operator_made_is_named_by_its_parameter(run, what, parameter, waits):
    model, sentinel = torch.nn.Sequential(torch.nn.Linear(2, 2)), NaNSentinel(action="warn")
    sentinel._waits = waits
    torch.nn.init.ones_(model[0].bias)  # the infinities have one sign
    with warnings.catch_warnings(), amanda.apply(sentinel):
        warnings.simplefilter("ignore", NonfiniteWarning)
        model(ONES)
        run(model[0])
    (found,) = sentinel.findings()
    name = what.format(f"parameter '0.{parameter}'")
    assert (found.kind, found.phase, found.backward_op, found.gradient) == ("given", "backward", "AccumulateGrad", name)
    assert str(found).startswith(f"the first NaN, which no operator seen here produced, was in {name} ")
    assert sentinel.propagated == 0


def test_it_ends_the_backward_pass_there():
    layer = torch.nn.Linear(2, 2)
    with (
        pytest.raises(NonfiniteError, match="in the gradient that reached parameter 'weight'"),
        amanda.apply(NaNSentinel()),
    ):
        by_a_hook(layer)
    assert layer.weight.grad is None


def test_a_gradient_that_an_operator_made_is_named_there_alone():
    weight = torch.zeros(2, requires_grad=True)
    sentinel = NaNSentinel(action="warn")
    with warnings.catch_warnings(), amanda.apply(sentinel):
        warnings.simplefilter("ignore", NonfiniteWarning)
        (weight.sqrt() * 0).sum().backward()
    assert [(one.kind, one.backward_op) for one in sentinel.findings()] == [("produced", "SqrtBackward0")]
    assert sentinel.propagated == 0


def test_a_leaf_without_a_name_is_named_by_the_operator_that_reads_it():
    leaf = torch.ones(2, requires_grad=True)
    leaf.register_hook(lambda gradient: gradient * torch.nan)
    with (
        pytest.raises(NonfiniteError, match="the gradient that reached a leaf of aten::mul "),
        amanda.apply(NaNSentinel()),
    ):
        (leaf * 2).sum().backward()


def test_without_gradients_it_is_not_looked_at():
    sentinel = NaNSentinel(backward=False)
    with amanda.apply(sentinel):
        by_a_hook(torch.nn.Linear(2, 2))
    assert sentinel.findings() == []


def test_gradients_are_taken_over_as_they_are_without_the_tool():
    """AccumulateGrad copies a gradient that somebody else holds."""

    def run():
        layer, places = torch.nn.Linear(2, 2), []
        layer.weight.register_hook(lambda gradient: places.append(gradient.data_ptr()))
        for _ in range(2):
            layer(ONES).sum().backward()
            places.append(layer.weight.grad.data_ptr())
        return places[0] == places[1] == places[3], layer.weight.grad

    alone = run()
    for waits in (True, False):
        sentinel = NaNSentinel(inf=True)
        sentinel._waits = waits
        with amanda.apply(sentinel):
            watched = run()
        assert watched[0] is alone[0] is True
        assert torch.equal(watched[1], alone[1])
