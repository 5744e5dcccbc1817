"""What MagnitudePruning, VectorwisePruning and FakeQuantization compute with numpy is what they compute with PyTorch."""

import pytest
import torch
from amanda.reports.places import Place
from amanda.tools.pruning import MagnitudePruning, VectorwisePruning
from amanda.tools.quantization import MovingRange, int8_activation, int8_weight
from amanda.tools.quantization.array_observed import ArrayObserved
from amanda.tools.quantization.rows import OperandPlace

AT = OperandPlace(Place(1, "tensorflow::MatMul", "dense", "a.py:1"), "input", "weight")


@pytest.mark.parametrize("sparsity", [0.0, 0.3, 0.995, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_magnitude_masks(sparsity, dtype):
    weight = torch.randperm(7 * 6 * 5).reshape(7, 6, 5).to(dtype) - 99.25  # no two magnitudes are equal
    tool = MagnitudePruning(sparsity)
    mask = tool.get_mask(weight.numpy(), 1)
    assert mask.dtype == weight.numpy().dtype
    assert torch.equal(torch.from_numpy(mask), tool.get_mask(weight, 1))


@pytest.mark.parametrize("dim", [0, 1, 2, 3, -2])
@pytest.mark.parametrize("shape", [(8, 4, 3, 5), (1, 9, 2, 1), (7, 6, 5, 4)])
def test_vectorwise_masks(shape, dim):
    weight = torch.randint(-3, 4, shape).float()  # with ties
    tool = VectorwisePruning()
    mask = tool.get_mask(weight.numpy(), dim)
    assert mask.shape == shape
    assert torch.equal(torch.from_numpy(mask), tool.get_mask(weight, dim))


RANGES = {
    "activation": int8_activation,
    "weight": int8_weight,
    "4 bits": MovingRange(0, 15),
    "symmetric": MovingRange(0, 255, symmetric=True),
    "3 bits by channel": MovingRange(-4, 3, by_channel=True, averaging_constant=0.3),
}


@pytest.mark.parametrize("range", RANGES.values(), ids=RANGES)
def test_fake_quantization(range):
    observer, observed = range(), ArrayObserved(AT, range, (0,) if range.by_channel else ())
    for scale in (1.0, 0.5, 3.0, 2.0):
        value = torch.randn(6, 500) * scale
        leaf = value.clone().requires_grad_()
        observer(value)
        scales, zeros = observer.calculate_qparams()
        limits = observer.quant_min, observer.quant_max
        if range.by_channel:
            expected = torch.fake_quantize_per_channel_affine(leaf, scales, zeros.int(), 0, *limits)
        else:
            expected = torch.fake_quantize_per_tensor_affine(leaf, scales, zeros.int(), *limits)
        expected.sum().backward()
        observed.look_at(value.numpy())
        found, passed = observed.fake_quantized(value.numpy())
        assert torch.equal(torch.from_numpy(found), expected)
        assert torch.equal(torch.from_numpy(passed), leaf.grad == 1)
        row = observed.row()
        assert torch.equal(torch.from_numpy(row.scale), scales)
        assert torch.equal(torch.from_numpy(row.zero_point), zeros.int())
    assert not passed.all()  # the range lags behind: values are clamped


def test_one_scale_for_each_pair_of_a_depthwise_convolutions_channels():
    value = torch.randn(3, 3, 4, 2)
    observed = ArrayObserved(AT, int8_weight, (2, 3))
    observed.look_at(value.numpy())
    scales = value.abs().amax((0, 1)).flatten() / 127.5
    torch.testing.assert_close(torch.from_numpy(observed.row().scale), scales)
    found, _ = observed.fake_quantized(value.numpy())
    flat = torch.fake_quantize_per_channel_affine(
        value.reshape(9, 8), torch.from_numpy(observed.row().scale), torch.zeros(8, dtype=torch.int32), 1, -128, 127
    )
    assert torch.equal(torch.from_numpy(found), flat.reshape(value.shape))
