"""StaticQuantization against models that torch.ao.quantization.prepare and convert made. Equal means torch.equal."""

# ruff: noqa: SIM117 -- outside the error that is expected, inside where it comes from

import copy
import re

import amanda
import numpy as np
import pytest
import torch
import torch.nn.functional as F
import zoo
from amanda.tools.quantization import PercentileObserver, StaticQuantization
from equal_tensors import same
from tool_regimes import in_regime
from torch import nn
from torch.ao.quantization import (
    DeQuantStub,
    QConfig,
    QuantStub,
    convert,
    default_dynamic_qconfig,
    default_per_channel_weight_observer,
    default_weight_observer,
    get_default_qconfig,
    prepare,
)
from torch.ao.quantization.observer import HistogramObserver, MinMaxObserver, PerChannelMinMaxObserver

pytestmark = [
    pytest.mark.filterwarnings("ignore:torch.ao.quantization is deprecated"),  # torch's, of the oracle
    pytest.mark.filterwarnings("ignore:Please use quant_min and quant_max"),  # torch's, of its default
]
QCONFIGS = {
    "min-max": QConfig(MinMaxObserver, default_weight_observer),
    "min-max per channel": QConfig(MinMaxObserver, default_per_channel_weight_observer),
    "symmetric": QConfig(MinMaxObserver.with_args(qscheme=torch.per_tensor_symmetric), default_weight_observer),
    "histogram": get_default_qconfig("x86"),
    "percentile": QConfig(PercentileObserver.with_args(percentile=95.0), default_per_channel_weight_observer),
}
each_qconfig = pytest.mark.parametrize("qconfig", QCONFIGS.values(), ids=QCONFIGS)
LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


class Stubbed(nn.Module):
    def __init__(self, layer, qconfig):
        super().__init__()
        self.quantize, self.layer, self.dequantize = QuantStub(), layer, DeQuantStub()
        self.qconfig = qconfig

    def forward(self, x):
        return self.dequantize(self.layer(self.quantize(x)))


def oracle(model, batches, qconfig):
    """The converted model: a QuantStub before each layer, a DeQuantStub after it."""
    model = nn.Sequential(copy.deepcopy(model))
    for module in list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, LAYERS):
                setattr(module, name, Stubbed(child, qconfig))
    model = prepare(model.eval())
    for batch in batches:
        model(batch)
    return convert(model)[0]


def mlp():
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def convolutions():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, stride=2),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 4, (3, 2), groups=2, bias=False, dilation=(2, 1), padding=(0, 1)),
        nn.Flatten(),
        nn.LazyLinear(4),
    )


MODELS = {
    "mlp": (mlp, (5, 8)),
    "three-dimensional": (mlp, (2, 5, 8)),
    "conv1d": (lambda: nn.Conv1d(3, 8, 3, padding=1, stride=2), (5, 3, 14)),
    "conv2d": (convolutions, (5, 3, 14, 14)),
    "conv3d": (lambda: nn.Conv3d(3, 8, 3, padding=(1, 0, 1)), (2, 3, 5, 5, 5)),
    "depthwise": (lambda: nn.Conv2d(8, 8, 3, groups=8), (2, 8, 6, 6)),
}


def batches_of(shape, count=4):
    return [torch.randn(shape) for _ in range(count)]


def calibrated(tool, run, batches):
    for batch in batches:
        run(batch)
    tool.convert()
    return [run(batch) for batch in batches]


def about_the_same(tool, found, expected):
    """Calibration may have seen other last bits than the oracle's, and a scale may differ by one."""
    (scale,) = (row.scale.item() for row in tool.rows() if row.side == "output")
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=scale * 1.01)
        assert (one - other).abs().mean() < scale / 20


# ---- models ----------------------------------------------------------------------------------------------------------


@each_qconfig
@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_a_model_computes_as_the_converted_one(name, qconfig):
    make, shape = MODELS[name]
    batches = batches_of(shape)
    model = nn.Sequential(make())
    model(batches[0])  # makes lazy layers, and statistics
    model.eval()
    plain, converted = [model(batch) for batch in batches], oracle(model, batches, qconfig)
    expected = [converted(batch) for batch in batches]
    tool = StaticQuantization(qconfig)
    with amanda.apply(tool):
        same([model(batch) for batch in batches], plain)  # it only looks
        tool.convert()
        same([model(batch) for batch in batches], expected)
    with amanda.apply(tool):  # another scope: still converted
        same([model(batch) for batch in batches], expected)
    same([model(batch) for batch in batches], plain)
    assert not torch.equal(plain[0], expected[0])
    assert len(tool.rows()) == 3 * sum(isinstance(module, LAYERS) for module in model.modules())


@torch.no_grad()
@pytest.mark.parametrize(
    ("make", "of_input", "of_output"),
    [(zoo.resnet, "pixel_values", "pooler_output"), (zoo.convnext, "pixel_values", "pooler_output")],
    ids=["resnet", "convnext"],
)
def test_library_models_compute_as_the_converted_ones(make, of_input, of_output):
    model, inputs = make()
    model.eval()
    batches = [inputs[of_input], torch.randn_like(inputs[of_input])]
    qconfig = get_default_qconfig("x86")
    converted, tool = oracle(model, batches, qconfig), StaticQuantization()  # its default is torch's
    with amanda.apply(tool):
        found = calibrated(tool, model, batches)
    same([one[of_output] for one in found], [converted(batch)[of_output] for batch in batches])
    assert all(torch.isfinite(row.scale).all() for row in tool.rows())


@torch.no_grad()
def test_layers_in_a_row_compute_as_between_one_pair_of_stubs():
    """What one layer's output observer and the next one's input observer find is the same."""
    model, batches, qconfig = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 4)), batches_of((5, 8)), QCONFIGS["min-max"]
    twin = nn.Sequential(QuantStub(), *copy.deepcopy(model), DeQuantStub()).eval()
    twin.qconfig = qconfig
    prepare(twin, inplace=True)
    for batch in batches:
        twin(batch)
    convert(twin, inplace=True)
    with amanda.apply(tool := StaticQuantization(qconfig)):
        same(calibrated(tool, model, batches), [twin(batch) for batch in batches])


FUNCTIONS = {
    "linear": lambda x, w, b: F.linear(x, w.t(), b),
    "matmul": lambda x, w, b: x @ w,
    "mm": lambda x, w, b: torch.mm(x, w),
    "addmm": lambda x, w, b: torch.addmm(b, x, w),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@torch.no_grad()
def test_functions_compute_as_converted_layers(name):
    w, b, batches = nn.Parameter(torch.randn(8, 4)), nn.Parameter(torch.randn(4)), batches_of((5, 8))
    linear = nn.Linear(8, 4, bias=name in ("linear", "addmm"))
    linear.weight.data = w.t().contiguous()
    if linear.bias is not None:
        linear.bias.data = b.data
    with amanda.apply(tool := StaticQuantization(QCONFIGS["min-max"])):
        found = calibrated(tool, amanda.root(lambda x: FUNCTIONS[name](x, w, b)), batches)
    converted = oracle(nn.Sequential(linear), batches, QCONFIGS["min-max"])
    about_the_same(tool, found, [converted(batch) for batch in batches])
    rows = tool.rows()
    left, right = amanda.ops.factors[name]
    assert [(row.side, row.position) for row in rows] == [("input", left), ("output", 0), ("input", right)]
    scales = [row.scale for row in rows]
    torch.testing.assert_close(scales[0], converted[0].quantize.scale)
    torch.testing.assert_close(scales[1].item(), converted[0].layer.scale)


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")  # torch's: it copies
@torch.no_grad()
@pytest.mark.parametrize("size", [3, 4])
def test_same_padding_is_the_padding_that_it_stands_for(size):
    batches, qconfig = batches_of((2, 3, 14)), QCONFIGS["min-max"]
    layer = nn.Conv1d(3, 4, size, padding="same", dilation=3)
    total = 3 * (size - 1)
    padded = nn.Sequential(nn.ConstantPad1d((total // 2, total - total // 2), 0.0), nn.Conv1d(3, 4, size, dilation=3))
    padded[1].load_state_dict(layer.state_dict())
    with amanda.apply(tool := StaticQuantization(qconfig)):
        found = calibrated(tool, nn.Sequential(layer), batches)
    converted = oracle(padded, batches, qconfig)
    about_the_same(tool, found, [converted(batch) for batch in batches])
    layer.padding = "valid"
    with amanda.apply(tool := StaticQuantization(qconfig)):
        found = calibrated(tool, nn.Sequential(layer), batches)
    converted = oracle(nn.Sequential(padded[1]), batches, qconfig)
    same(found, [converted(batch) for batch in batches])


@torch.no_grad()
@pytest.mark.parametrize("layer", [nn.Linear(8, 4), nn.Conv2d(8, 4, 3)], ids=["linear", "conv2d"])
def test_an_input_without_a_batch_is_a_batch_of_one(layer):
    model = nn.Sequential(layer)
    alone = batches_of((8,) if isinstance(layer, nn.Linear) else (8, 5, 5))
    with amanda.apply(tool := StaticQuantization()):
        found = calibrated(tool, model, alone)
        same(found, [model(x[None])[0] for x in alone])


def test_calibration_changes_no_gradient():
    model, x = convolutions(), torch.randn(5, 3, 14, 14)
    model(x)

    def gradients():
        model.zero_grad()
        model(x).square().sum().backward()
        return [parameter.grad.clone() for parameter in model.parameters()]

    expected = gradients()
    with amanda.apply(StaticQuantization()):
        same(gradients(), expected)


@torch.no_grad()
def test_each_place_of_a_layer_that_runs_twice_has_its_own_range():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, x):
            return self.layer(torch.relu(self.layer(x)) * 9)

    model, batches, qconfig = Twice(), batches_of((5, 8)), QCONFIGS["min-max"]
    with amanda.apply(tool := StaticQuantization(qconfig)):
        found = calibrated(tool, model, batches)
    first = oracle(nn.Sequential(model.layer), batches, qconfig)
    second = oracle(nn.Sequential(model.layer), [torch.relu(model.layer(batch)) * 9 for batch in batches], qconfig)
    same(found, [second(torch.relu(first(batch)) * 9) for batch in batches])


@torch.no_grad()
def test_a_weight_that_changes_is_packed_again_with_the_same_ranges():
    model, batches, qconfig = mlp(), batches_of((5, 8)), QCONFIGS["min-max"]
    with amanda.apply(tool := StaticQuantization(qconfig)):
        calibrated(tool, model, batches)
        model[0].weight.mul_(0.5)
        found = model(batches[0])
    ranges = {(row.module_path, row.side): (row.scale.item(), row.zero_point.item()) for row in tool.rows()[:4]}

    def by_hand(layer, path, x):
        observer = qconfig.weight()
        observer(layer.weight)
        weight = torch.quantize_per_tensor(layer.weight, *observer.calculate_qparams(), torch.qint8)
        packed = torch.ops.quantized.linear_prepack(weight, layer.bias)
        x = torch.quantize_per_tensor(x, *ranges[path, "input"], torch.quint8)
        return torch.ops.quantized.linear(x, packed, *ranges[path, "output"]).dequantize()

    assert torch.equal(found, by_hand(model[2], "2", torch.relu(by_hand(model[0], "0", batches[0]))))


@torch.no_grad()
def test_after_reset_it_calibrates_anew():
    model, small, large = mlp(), batches_of((5, 8)), [10 * batch for batch in batches_of((5, 8))]
    tool = StaticQuantization(QCONFIGS["min-max"])
    with amanda.apply(tool):
        calibrated(tool, model, small)
        first = tool.rows()[0].scale
        tool.reset()
        assert (tool.rows(), tool.converted) == ([], False)
        found = calibrated(tool, model, large)
    converted = oracle(model, large, QCONFIGS["min-max"])
    same(found, [converted(batch) for batch in large])
    assert tool.rows()[0].scale > 5 * first


# ---- the percentile observer -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("percentile", [60, 95.0, 99.9, 100])
def test_the_percentile_observer_finds_percentiles(percentile):
    batches = [torch.randn(20000) * scale + 0.3 for scale in (1.0, 3.0, 0.5)]
    observer = PercentileObserver(percentile)
    for batch in batches:
        observer(batch)
    scale, zero_point = observer.calculate_qparams()
    values = torch.cat(batches).numpy()
    low, high = min(np.percentile(values, 100 - percentile), 0.0), np.percentile(values, percentile)  # 0 is in range
    bin_width = float(values.max() - values.min()) / 2048
    assert scale.item() * 255 == pytest.approx(high - low, abs=4 * bin_width)
    assert -scale.item() * zero_point.item() == pytest.approx(low, abs=2 * bin_width + scale.item())
    if percentile == 100:
        widest = MinMaxObserver()
        widest(torch.from_numpy(values))
        torch.testing.assert_close(scale, widest.calculate_qparams()[0])


def test_a_percentile_out_of_range_is_an_error(says):
    for percentile in (50, 101, 0.999):
        with says(ValueError, f"[quantization] percentile= is above 50, up to 100; got {percentile}"):
            PercentileObserver(percentile)


# ---- where it works --------------------------------------------------------------------------------------------------


@torch.no_grad()
@pytest.mark.parametrize("regime", ["checkpointing", "compiled code", "distributed training"])
def test_in_a_regime_it_computes_the_same(regime):
    model, batches, qconfig = mlp(), batches_of((5, 8)), QCONFIGS["histogram"]
    converted = oracle(model, batches, qconfig)
    with in_regime(regime, model) as run, amanda.apply(tool := StaticQuantization(qconfig)):
        same(calibrated(tool, run, batches), [converted(batch) for batch in batches])


@torch.no_grad()
def test_under_autocast_results_have_the_dtype_of_autocast():
    model, batches, qconfig = mlp(), batches_of((5, 8)), QCONFIGS["min-max"]
    with in_regime("autocast", model) as run, amanda.apply(tool := StaticQuantization(qconfig)):
        found = calibrated(tool, run, batches)
    first, second = (nn.Sequential(model[i]) for i in (0, 2))
    with torch.autocast("cpu", torch.bfloat16):
        hidden = [torch.relu(first(batch)) for batch in batches]
        converted = [oracle(first, batches, qconfig), oracle(second, hidden, qconfig)]
    for one, batch in zip(found, batches, strict=True):
        inner = torch.relu(converted[0](batch).bfloat16())
        assert torch.equal(one, converted[1](inner.float()).bfloat16())


@torch.no_grad()
def test_layers_that_are_quantized_already_run_as_they_are():
    model, batches = mlp(), batches_of((5, 8))
    converted = oracle(model, batches, QCONFIGS["min-max"])
    expected = [converted(batch) for batch in batches]
    with amanda.apply(StaticQuantization()):
        same([converted(batch) for batch in batches], expected)


# ---- what it refuses -------------------------------------------------------------------------------------------------


def test_a_gradient_after_conversion_is_an_error():
    model, x = mlp(), torch.randn(5, 8)
    with amanda.apply(tool := StaticQuantization()):
        model(x)
        tool.convert()
        with pytest.raises(amanda.Error, match=r"^\[quantization\] aten::linear \(.*\) computes with integers, ") as e:
            model(x)
    assert "run the model under torch.no_grad(), or train it with FakeQuantization" in str(e.value)


@torch.no_grad()
def test_what_was_not_calibrated_is_an_error(says):
    model, x, tool = mlp(), torch.randn(5, 8), StaticQuantization()
    with says(
        amanda.Error,
        "[quantization] nothing is calibrated: run the model on sample data in a scope of this tool first",
    ):
        tool.convert()
    with amanda.apply(tool):
        model[0](x)
        tool.convert()
        with pytest.raises(
            amanda.Error, match=r"^\[quantization\] input 'input' of aten::linear \(.*:\d+\) has no"
        ) as e:
            model(x)
    assert (
        "range yet; before convert(), run data that reaches it, through the same function if it is in no module "
        "(amanda.root), or leave it out with where="
    ) in str(e.value)


def test_misuse_is_told(says):
    weight = default_weight_observer
    with says(TypeError, "[quantization] qconfig= takes a torch.ao.quantization.QConfig, got 'x86'"):
        StaticQuantization("x86")
    wrong = [
        default_dynamic_qconfig,
        QConfig(MinMaxObserver.with_args(dtype=torch.qint8), weight),
        QConfig(PerChannelMinMaxObserver, weight),
    ]
    for qconfig in wrong:
        with says(
            ValueError,
            "[quantization] activations need an observer that finds one range for dtype torch.quint8, such as "
            f"MinMaxObserver; got {qconfig.activation()}",
        ):
            StaticQuantization(qconfig)
    with says(
        amanda.Error,
        "[quantization] no kernel of StaticQuantization runs aten::conv_transpose1d; ops= takes linear, matmul, mm, addmm, "
        "bmm, _grouped_mm, conv1d, conv2d, conv3d",
    ):
        with amanda.apply(StaticQuantization(ops="conv_transpose1d")):
            F.conv_transpose1d(torch.ones(1, 1, 3), torch.ones(1, 1, 2))


@torch.no_grad()
def test_where_leaves_operators_as_they_are():
    model, batches, qconfig = mlp(), batches_of((5, 8)), QCONFIGS["histogram"]
    with amanda.apply(tool := StaticQuantization(qconfig, where=lambda context: context.module_path == "0")):
        found = calibrated(tool, model, batches)
    converted = oracle(nn.Sequential(model[0]), batches, qconfig)
    same(found, [model[2](torch.relu(converted(batch))) for batch in batches])


def test_the_default_is_torchs_for_x86():
    tool, expected = StaticQuantization(), get_default_qconfig("x86")
    for ours, theirs in (
        (tool.qconfig.activation(), expected.activation()),
        (tool.qconfig.weight(), expected.weight()),
    ):
        assert type(ours) is type(theirs)
        assert (ours.dtype, ours.qscheme, ours.quant_min, ours.quant_max) == (
            theirs.dtype,
            theirs.qscheme,
            theirs.quant_min,
            theirs.quant_max,
        )
    assert isinstance(tool.qconfig.activation(), HistogramObserver)


# ---- the example -----------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_the_example_shows_what_int8_costs_and_gains(run_example):
    printed = run_example("int8_inference.py")
    rows = re.findall(r"^(\w[\w, ]+?)  +(\d\.\d+) +\d\.\d+ +\d\.\d+ +(\d+\.\d)", printed, flags=re.MULTILINE)
    cosine, size = ({name: float(row[i]) for name, *row in rows} for i in (0, 1))
    assert cosine["float32"] == 1
    assert 1 > cosine["dynamic, per channel"] > cosine["dynamic"] > cosine["static"] > 0.7
    assert cosine["static, not behind GELU"] > 0.95
    assert size["float32"] / 4 < size["dynamic"] < size["static, not behind GELU"] < size["float32"]
