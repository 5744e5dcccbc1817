"""ErrorInjection's messages: faults, places and settings that it refuses, and tensors that it leaves alone."""

# ruff: noqa: SIM117 -- outside the error that is expected, inside where it comes from

import amanda
import pytest
import torch
from amanda.research.error_injection import BitFlip, ErrorInjection, Fault, RandomValue, StuckAt

BIT = "[error_injection] bit= is the number of a bit, or several; 0 is the lowest; got "
NODE = (
    '[error_injection] backward_op= names the autograd node for at="grad_output" and at="grad_input", such as '
    '"ConvolutionBackward0"; the results of GradientStatistics list them; got at='
)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: BitFlip(-1), BIT + "-1"),
        (lambda: BitFlip([]), BIT + "[]"),
        (lambda: StuckAt(1, bit=[3, -2]), BIT + "[3, -2]"),
        (lambda: StuckAt(2, bit=3), "[error_injection] a bit is stuck at 0 or 1, got 2"),
        (lambda: RandomValue(1, 1), "[error_injection] a range from 1 to 1 has no values: low < high"),
        (
            lambda: ErrorInjection(BitFlip(), rate=1.5),
            "[error_injection] rate= is the probability of a fault per element, 0 to 1; got 1.5",
        ),
        (
            lambda: ErrorInjection(BitFlip(), count=0),
            "[error_injection] count= is how many elements to hit, 1 or more; got 0",
        ),
        (
            lambda: ErrorInjection(BitFlip(), count=1, rate=0.1),
            "[error_injection] give one of index=, count= and rate=; got None, 1, 0.1",
        ),
        (
            lambda: ErrorInjection(BitFlip(), index=[3, 4]),
            "[error_injection] index= is a tuple of integers, or a list of such; got [3, 4]",
        ),
        (
            lambda: ErrorInjection(BitFlip(), at="bias"),
            "[error_injection] at= is output, input, weight, grad_output, grad_input; got 'bias'",
        ),
        (lambda: ErrorInjection(BitFlip(), at="grad_input"), NODE + "'grad_input', None"),
        (lambda: ErrorInjection(BitFlip(), backward_op="MulBackward0"), NODE + "'output', 'MulBackward0'"),
    ],
)
def test_a_wrong_value_is_refused_at_once(says, make, text):
    with says(ValueError, text):
        make()


def test_a_wrong_type_is_refused_at_once(says):
    with says(TypeError, "[error_injection] a fault is a BitFlip, a StuckAt or a RandomValue, got 30"):
        ErrorInjection(30)
    with says(TypeError, "[error_injection] where= takes a function of an operator's context, got 'conv'"):
        ErrorInjection(BitFlip(), where="conv")
    with says(TypeError, "[error_injection] execution= is a number or a range of numbers, got 'x'"):
        ErrorInjection(BitFlip(), execution="x")
    with says(NotImplementedError, "[error_injection] Fault has no corrupt"):
        with amanda.apply(ErrorInjection(Fault(), ops="clone")):
            torch.ones(2).clone()


@pytest.mark.parametrize(
    ("fault", "options", "text"),
    [
        (BitFlip(32), {}, "[error_injection] a float32 has no bit 32: its bits are 0 to 31"),
        (
            BitFlip(0),
            {"index": (0, 2)},
            "[error_injection] output 0 of aten::linear has the shape (1, 2), and no element (0, 2)",
        ),
        (
            BitFlip(0),
            {"index": (0,), "at": "grad_output", "backward_op": "AddmmBackward0"},
            "[error_injection] grad_output 0 of AddmmBackward0 has the shape (1, 2), and no element (0,)",
        ),
        (
            BitFlip(0),
            {"at": "weight", "ops": "relu"},
            "[error_injection] which input of aten::relu is its weight is not known; name it by position=",
        ),
    ],
)
def test_what_an_operator_does_not_have_is_refused_when_it_runs(says, fault, options, text):
    with says(amanda.Error, text):
        with amanda.apply(ErrorInjection(fault, **options)):
            torch.nn.Linear(3, 2)(torch.ones(1, 3)).relu().sum().backward()


def test_several_samples_at_once_are_left_alone_and_counted(caplog):
    layer, x, injection = torch.nn.Linear(2, 2), torch.randn(3, 2), ErrorInjection(BitFlip())
    with amanda.apply(injection):
        found = torch.vmap(layer)(x)
        torch.vmap(torch.func.grad(lambda x: layer(x).sum()))(x)
        assert injection.faults == 0
        layer(x)
    assert torch.equal(found, torch.vmap(layer)(x))
    assert (injection.faults, injection.skipped) == (1, {"transformed": 2})
    assert [one.reason for one in injection.evidence().unseen] == ["transformed"]
    assert "a tensor inside a transformation of torch.func, such as vmap" in caplog.text


def test_what_samples_share_under_vmap_is_hit():
    layer, x, injection = (
        torch.nn.Linear(2, 2),
        torch.randn(3, 2),
        ErrorInjection(StuckAt(7.0), at="weight", index=(0, 1)),
    )
    with amanda.apply(injection):
        found = torch.vmap(layer)(x)
    with torch.no_grad():
        layer.weight[0, 1] = 7.0
    torch.testing.assert_close(found, layer(x))
    assert (injection.faults, injection.skipped) == (1, {})
