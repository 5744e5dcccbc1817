"""NaNSentinel: what of the program's results a NaN has come to, or that it came to none."""

import warnings

import amanda
import pytest
import torch
from amanda.tools.nonfinite import NaNSentinel

X = torch.tensor([0.0, 1.0])
NOTHING = "no gradient of a parameter, no parameter, and no number that the program read"
GONE = f"it reached nothing: {NOTHING}, as far as operators show; no memory that had it was in use at the end"
IN_USE = f"it reached {NOTHING}; memory that had it was in use at the end of the scope, a result maybe"


def run(program, sentinel=None):
    sentinel, kept = sentinel or NaNSentinel(action="warn"), []
    with warnings.catch_warnings(), amanda.apply(sentinel):
        warnings.simplefilter("ignore")
        kept.append(program())
    return sentinel


def reached(program):
    sentinel = run(program)
    return sentinel.reached(sentinel.first)


def chosen_otherwise():
    return torch.where(X > 0, X / X, 0.0).sum().item()


def replaced():
    return torch.nan_to_num(X / X)


def indexed():
    return (X / X)[1:].clone()


def read_as_a_number():
    return (X / X).sum().item()


def given_back():
    return X / X


def into_a_gradient():
    weight = torch.nn.Linear(2, 1)
    weight(X / X).sum().backward()
    return weight


def into_a_parameter():
    model = torch.nn.Linear(2, 1, bias=False)
    model(X).sum().backward()
    model.weight.grad.div_(0).sub_(torch.inf)
    torch.optim.SGD(model.parameters(), 0.1).step()
    model(X).detach()
    return None


@pytest.mark.parametrize("program", [chosen_otherwise, replaced, indexed])
def test_one_that_came_to_nothing_is_said_to_be_one(program):
    assert reached(program) == GONE


def test_what_is_in_use_at_the_end_is_not_said_to_have_come_to_nothing():
    assert reached(given_back) == IN_USE


def test_a_number_that_the_program_read_is_named_by_its_line():
    line = read_as_a_number.__code__.co_firstlineno + 1
    assert reached(read_as_a_number).startswith("it reached a number that the program read (")
    assert reached(read_as_a_number).endswith(f"test_nonfinite_reach.py:{line})")


def test_gradients_and_parameters_are_named():
    told = "it reached the gradient that reached parameter 'weight'"
    assert reached(into_a_gradient).startswith(told.replace("the gradient that reached", "the gradient of"))
    assert reached(into_a_parameter).startswith("it reached parameter 'weight'")


def test_each_finding_has_its_own():
    def program():
        torch.where(X > 0, X / X, 0.0)
        return (X - X).log().mul(0).sum().item()

    sentinel = run(program)
    assert [(found.name, sentinel.reached(found)[:18]) for found in sentinel.findings()] == [
        ("aten::div", "it reached nothing"),
        ("aten::mul", "it reached a numbe"),
    ]


def test_infinities_that_autograd_adds_up_are_a_finding_of_their_own():
    """A NaN that came before, and to nothing, is not where theirs is from."""

    def program():
        torch.where(X > 0, X / X, 0.0)
        weight = torch.nn.Parameter(torch.ones(2))
        (weight - weight).sqrt().sum().backward()

    sentinel = run(program)
    assert [(found.name, found.kind) for found in sentinel.findings()] == [
        ("aten::div", "produced"),
        (sentinel.findings()[1].name, "given"),
    ]
    assert sentinel.findings()[1].origin.backward_op == "SqrtBackward0"
    assert sentinel.findings()[1].gradient.startswith("the gradient that reached ")


def test_it_is_not_known_where_values_are_not_followed():
    sentinel = NaNSentinel(action="warn")
    sentinel._waits = False
    run(chosen_otherwise, sentinel)
    assert sentinel.reached(sentinel.first) == ""


def test_reset_forgets_what_came_of_an_earlier_run():
    sentinel = run(read_as_a_number)
    sentinel.reset()
    run(chosen_otherwise, sentinel)
    assert [sentinel.reached(found) for found in sentinel.findings()] == [GONE]
