"""NaNSentinel on functions that stay compiled."""

import inspect
import warnings

import amanda
import pytest
import torch
from amanda.tools.nonfinite import NaNSentinel, NonfiniteError


def compiled(function):
    return torch.compile(function, backend="aot_eager")


def log_of(x):
    return torch.relu(torch.log(x - 1.0)).sum()


def test_the_operator_that_made_it_is_named():
    with pytest.raises(NonfiniteError) as caught, amanda.apply(NaNSentinel(), compiled="graph"):
        compiled(log_of)(torch.tensor([0.5, 3.0]))
    found = caught.value.finding
    assert (found.name, found.kind, found.phase) == ("aten::log", "produced", "forward")
    assert int(found.source.rpartition(":")[2]) == inspect.getsourcelines(log_of)[1] + 1
    assert found.cause == "input self is negative"
    assert (found.outputs[0].nans, found.inputs[0].min) == (1, -0.5)


def test_what_others_made_of_it_is_counted_and_results_are_the_same():
    x, sentinel = torch.tensor([0.5, 3.0], dtype=torch.bfloat16), NaNSentinel(action="warn")
    vanilla = compiled(log_of)(x)
    with warnings.catch_warnings(), amanda.apply(sentinel, compiled="graph"):
        warnings.simplefilter("ignore")
        inside = compiled(log_of)(x)
    assert torch.equal(torch.isnan(inside), torch.isnan(vanilla))
    assert [one.name for one in sentinel.findings()] == ["aten::log"]
    assert sentinel.propagated == 2  # relu and sum


@pytest.mark.parametrize("inf", [True, False])
def test_a_gradient(inf):
    """That of the root of 0 is infinite, and 0 times it is NaN."""
    x = torch.zeros(2, 3, requires_grad=True)
    with pytest.raises(NonfiniteError) as caught, amanda.apply(NaNSentinel(inf=inf), compiled="graph"):
        compiled(lambda x: (x**2).sum(-1).sqrt().mean())(x).backward()
    found = caught.value.finding
    assert (found.phase, found.kind) == ("backward", "produced")
    assert found.name == ("aten::sqrt" if inf else "aten::pow")
    assert ("aten::sqrt" in found.infinity) is not inf


def test_a_finite_function_computes_the_same_and_finds_nothing():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Dropout(0.5))
    x, sentinel, results = torch.ones(3, 4), NaNSentinel(inf=True), []
    state = {name: value.clone() for name, value in model.state_dict().items()}
    for scope in (amanda.apply(amanda.Tool("nothing"), compiled="opaque"), amanda.apply(sentinel, compiled="graph")):
        model.load_state_dict(state)
        torch.manual_seed(0)
        with scope:
            call = compiled(model)
            call(x).square().sum().backward()
        results.append([*(value.clone() for value in model.state_dict().values()), model[0].weight.grad.clone()])
        model.zero_grad()
    assert all(map(torch.equal, *results))
    assert sentinel.findings() == []
