"""What FakeQuantization rounds in C++, against PyTorch's operators, and when it does so."""

import math

import amanda
import pytest
import torch
from amanda.tools.quantization import FakeQuantization, MovingRange
from amanda.tools.quantization.observed import Observed
from hypothesis import given, settings
from hypothesis import strategies as st
from moving_ranges import AT, RANGES
from torch.utils._python_dispatch import TorchDispatchMode

SPECIAL = [0.0, -0.0, 0.5, -0.5, 1.5, 2.5, 1e-45, -1e-45, 1e6, -1e6, 1e30, -3e38, math.nan, math.inf, -math.inf]
LAYOUTS = {
    "contiguous": lambda x: x,
    "transposed": lambda x: x.transpose(1, 2),
    "channels last": lambda x: x.contiguous(memory_format=torch.channels_last),
    "with gaps": lambda x: x[:, ::2],
    "expanded": lambda x: x[:, :1].expand(-1, 5, -1, -1),
    "empty": lambda x: x[:, :0],
}


def observed_by(made):
    observed = Observed.by(AT, made)
    observed.look_at(torch.randn(6, 4, 4, 4))
    assert observed.continued is not None
    return observed


def bits(value):
    return value.contiguous().view({2: torch.int16, 4: torch.int32, 8: torch.int64}[value.element_size()])


def compare(observed, value):
    """Values, strides, gradients and gradients of gradients of both, to the bit."""
    results = []
    for quantize in (
        observed.continued.fake_quantized,
        lambda x: observed.rounded(x, *observed.qparams("")),
    ):
        leaf = value.detach().clone(memory_format=torch.preserve_format).requires_grad_()
        rounded = quantize(leaf)
        upstream = torch.linspace(-2, 2, rounded.numel()).reshape(rounded.shape).to(value.dtype).requires_grad_()
        (gradient,) = torch.autograd.grad(rounded, leaf, upstream, create_graph=True)
        (again,) = torch.autograd.grad(gradient, upstream, torch.ones_like(gradient))
        with torch.no_grad():
            alone = quantize(leaf)
        assert not alone.requires_grad
        assert rounded.stride() == alone.stride()
        results.append((rounded, alone, gradient, again, rounded.stride()))
    ours, theirs = results
    assert ours[-1] == theirs[-1]
    for one, other in zip(ours[:-1], theirs[:-1], strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(bits(one), bits(other))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_values_and_gradients_are_bit_equal_to_pytorchs_operators(dtype, layout):
    torch.manual_seed(0)
    for made in RANGES:
        observed = observed_by(made)
        for factor in (1.0, 30.0):
            compare(observed, LAYOUTS[layout](torch.randn(6, 4, 4, 4) * factor).to(dtype))


@pytest.mark.parametrize("special", SPECIAL)
@pytest.mark.parametrize("made", RANGES, ids=str)
def test_special_values_are_bit_equal_to_pytorchs_operators(special, made):
    value = torch.randn(6, 4, 4, 4)
    value[3, 2, 1, 0] = special
    compare(observed_by(made), value)


@settings(deadline=None)  # a machine may be busy
@given(st.lists(st.floats(width=32), min_size=6, max_size=40), st.sampled_from(RANGES), st.floats(1e-3, 1e3))
def test_any_values_are_bit_equal_to_pytorchs_operators(elements, made, spread):
    value = torch.tensor(elements)[: len(elements) // 6 * 6].reshape(6, -1)
    observed = Observed.by(AT, made)
    observed.look_at(torch.linspace(-spread, spread, 12).reshape(6, 2))
    compare(observed, value)


def test_exact_ties_are_rounded_to_even_as_pytorch_does():
    observed = Observed.by(AT, MovingRange(quant_min=-128, quant_max=127, symmetric=True))
    observed.look_at(torch.tensor([[127.5, -127.5]]))
    assert observed.qparams("")[0].item() == 1
    halves = torch.arange(-130, 130, 0.5).reshape(1, -1)
    compare(observed, halves)
    assert torch.equal(observed.continued.fake_quantized(halves), halves.round().clamp(-128, 127))


def test_large_tensors_are_rounded_by_several_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        for made in RANGES[:2] + RANGES[-2:]:
            observed = observed_by(made)
            compare(observed, torch.randn(6, 300, 37, 11))
    finally:
        torch.set_num_threads(before)


def test_a_dispatch_mode_sees_pytorchs_operator():
    class Names(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            names.append(func.overloadpacket.__name__)
            return func(*args, **(kwargs or {}))

    names, observed = [], observed_by(MovingRange())
    value = torch.randn(3, 4)
    with Names():
        inside = observed.continued.fake_quantized(value)
    assert "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams" in names
    assert torch.equal(inside, observed.continued.fake_quantized(value))


# ---- when C++ does it -----------------------------------------------------------------------------------------------


class Counted(FakeQuantization):
    """Counts the operands that Python quantized."""

    def __init__(self, *args):
        self.in_python = 0
        super().__init__(*args)

    def _fake_quantize(self, *args, **kwargs):
        self.in_python += 1
        return super()._fake_quantize(*args, **kwargs)


def test_python_begins_each_range_and_continues_what_cpp_cannot():
    layer, x = torch.nn.Linear(4, 4), torch.randn(3, 4)
    counted = Counted()
    with amanda.apply(counted):
        for _ in range(3):
            layer(x)
        assert counted.in_python == 2  # the input and the weight
        layer(torch.full((3, 4), math.nan))
        assert counted.in_python == 3
        counted.observe = False
        layer(x)
        assert counted.in_python == 4  # only the observer knows what a range up to NaN means
        counted.reset()
        with pytest.raises(amanda.Error, match="has no range yet; run the program with observe = True first"):
            layer(x)
        counted.observe = True
        layer(x)
        layer(x)
    assert counted.in_python == 7  # the failure, and both operands again
    with amanda.apply(counted):
        layer(x)
    assert counted.in_python == 7 + 2  # the ranges stay; each scope's routines find them once
    assert [row.position for row in counted.rows()] == ["input", "weight"]


def test_switches_hold_from_the_next_operator_on():
    x = torch.linspace(-1, 1, 16).reshape(4, 4)
    layer = torch.nn.Linear(4, 4)
    expected, tool = layer(x), FakeQuantization()
    with amanda.apply(tool):
        for _ in range(2):
            assert not torch.equal(layer(x), expected)
        tool.quantize = False
        assert torch.equal(layer(x), expected)
        (before, _), tool.observe = tool.rows(), False
        layer(x * 100)
        assert torch.equal(tool.rows()[0].scale, before.scale)
        tool.observe = tool.quantize = True
        with amanda.disabled():
            exact = layer(x * 100)
        assert not torch.equal(layer(x * 100), exact)
        assert tool.rows()[0].scale > before.scale


def test_training_in_cpp_is_bit_equal_to_training_in_python(monkeypatch):
    def trained():
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(288, 5)
        )
        optimizer, tool = torch.optim.SGD(model.parameters(), lr=0.1), FakeQuantization()
        with amanda.apply(tool):
            for _ in range(4):
                loss = model(torch.randn(2, 3, 8, 8)).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        return [*model.parameters(), *(part for row in tool.rows() for part in (row.scale, row.zero_point))]

    in_cpp = trained()
    monkeypatch.setattr(FakeQuantization, "_quantizer", lambda self, context: None)
    monkeypatch.setattr(Observed, "_continue", lambda self: None)
    for one, other in zip(in_cpp, trained(), strict=True):
        assert torch.equal(bits(one), bits(other))
