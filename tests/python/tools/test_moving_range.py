"""The range that FakeQuantization follows in C++, against the observer of torch.ao.quantization that has begun it."""

import itertools
import math

import amanda
import pytest
import torch
from amanda.tools.quantization import FakeQuantization, MovingRange
from amanda.tools.quantization.observed import Observed
from moving_ranges import AT, RANGES

MOVES = [
    lambda x: x,
    lambda x: x.abs() + 1,
    lambda x: -x.abs(),
    lambda x: x * 0,
    lambda x: x * 1e30,
    lambda x: x * 1e-40,
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_scale_and_zero_point_are_bit_equal_to_the_observers(dtype):
    torch.manual_seed(0)
    for made, move in itertools.product(RANGES, MOVES):
        ours, theirs = Observed.by(AT, made), Observed(AT, made())
        for step in range(5):
            value = move(torch.randn(3, 4, 5) + step).to(dtype)
            value = [value, value.transpose(1, 2), value[:, ::2], value, value[:, :0]][step]
            ours.look_at(value)
            theirs.look_at(value)
            _compare(ours, theirs)
        assert ours.continued is not None


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("by_channel", [False, True])
def test_values_that_are_not_finite_are_the_observers(bad, by_channel):
    made = MovingRange(by_channel=by_channel)
    ours, theirs = Observed.by(AT, made), Observed(AT, made())
    for step in range(3):
        value = torch.randn(3, 4)
        if step == 1:
            value[1, 2] = bad
        for observed in (ours, theirs):
            observed.look_at(value)
        assert torch.equal(ours.observer.min_val.nan_to_num(), theirs.observer.min_val.nan_to_num())
        assert torch.equal(ours.observer.max_val.nan_to_num(), theirs.observer.max_val.nan_to_num())


def test_the_range_goes_on_in_the_observer():
    made, values = MovingRange(), torch.randn(4, 6, 8)
    ours, theirs = Observed.by(AT, made), Observed(AT, made())
    for value, through in zip(values, [0, 1, 0, 1], strict=True):
        ours.look_at(torch.vmap(lambda x: x)(value) if through else value)
        theirs.look_at(value)
        assert torch.equal(ours.observer.min_val, theirs.observer.min_val)
    _compare(ours, theirs)


def test_another_number_of_channels_is_refused_as_by_the_observer():
    observed = Observed.by(AT, MovingRange(by_channel=True))
    for _ in range(2):
        observed.look_at(torch.randn(3, 4))
    with pytest.raises(RuntimeError, match="must match the size"):
        observed.look_at(torch.randn(5, 4))


def test_averages_that_cross_by_rounding_are_refused_as_by_the_observer():
    low = torch.tensor(0.00066760177)
    near, far = torch.stack([low, low.nextafter(torch.tensor(1.0))]), torch.tensor([0.71954685])
    ours, theirs = Observed.by(AT, MovingRange()), Observed(AT, MovingRange()())
    for observed in (ours, theirs):
        observed.look_at(near)
        observed.look_at(far)
        with pytest.raises(AssertionError, match="should be less than max"):
            observed.qparams("")


def test_a_range_from_inference_serves_training():
    layer, tool = torch.nn.Linear(4, 4), FakeQuantization()
    with amanda.apply(tool):
        for mode in (True, True, False):
            with torch.inference_mode(mode):
                found = layer(torch.randn(2, 4))
            tool.observe = mode
        found.sum().backward()
    assert layer.weight.grad is not None


def _compare(ours, theirs):
    mine, expected = ours.qparams(""), theirs.qparams("")
    for one, other in zip(mine, expected, strict=True):
        assert one.dtype == other.dtype
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)
