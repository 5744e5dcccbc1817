"""FakeQuantization against torch.ao.quantization.FakeQuantize modules, placed by hand.

Equal means torch.equal: of outputs, gradients, parameters after training, scales and zero points.
"""

# ruff: noqa: SIM117 -- outside the error that is expected, inside where it comes from

import copy
import itertools
import os
import re
import subprocess
import sys

import amanda
import pytest
import torch
import torch.nn.functional as F
from amanda.tools.quantization import INT8, FakeQuantization, int8_activation, int8_weight
from repository import ROOT
from torch.ao.quantization import FakeQuantize
from torch.ao.quantization.observer import (
    HistogramObserver,
    MinMaxObserver,
    MovingAverageMinMaxObserver,
    MovingAveragePerChannelMinMaxObserver,
    PerChannelMinMaxObserver,
)
from torch.utils.checkpoint import checkpoint

OBSERVERS = {
    "minmax": (MinMaxObserver, {"dtype": torch.quint8}),
    "symmetric": (MinMaxObserver, {"dtype": torch.qint8, "qscheme": torch.per_tensor_symmetric}),
    "moving": (MovingAverageMinMaxObserver, {"dtype": torch.quint8}),
    "narrow": (MinMaxObserver, {"dtype": torch.quint8, "quant_min": 0, "quant_max": 15}),
    "channel": (PerChannelMinMaxObserver, {"dtype": torch.qint8, "qscheme": torch.per_channel_symmetric}),
    "moving channel": (
        MovingAveragePerChannelMinMaxObserver,
        {"dtype": torch.qint8, "qscheme": torch.per_channel_affine, "ch_axis": 1},
    ),
}


def by_hand(kind, options):
    """A FakeQuantize module on an observer of that kind."""
    return FakeQuantize(observer=kind, **options)


def train(program, parameters, batches):
    """Outputs, input gradients and parameters of some steps."""
    optimizer = torch.optim.SGD([*parameters, torch.zeros(1)], lr=0.01, momentum=0.9)
    found = []
    for batch in batches:
        inputs = [tensor.clone().requires_grad_() for tensor in batch]
        optimizer.zero_grad()
        output = program(*(x * 1 for x in inputs))  # a new leaf in each step would be a new place
        output.square().mean().backward()
        optimizer.step()
        found += [output.detach(), *(x.grad for x in inputs), *(p.grad.clone() for p in parameters)]
        found += [p.detach().clone() for p in parameters]
    return found


def same(found, expected):
    assert len(found) == len(expected) > 0
    assert all(tensor.isfinite().all() for tensor in expected)
    assert all(map(torch.equal, found, expected))


def batches(*shapes, steps=4):
    """Ranges grow and shrink: moving averages lag behind, so that values are clamped."""
    scales = itertools.islice(itertools.cycle((1.0, 0.5, 3.0, 2.0)), steps)
    return [[torch.randn(shape) * scale for shape in shapes] for scale in scales]


# ---- against modules -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "options"), OBSERVERS.values(), ids=OBSERVERS)
def test_operands_of_a_linear_layer_are_quantised_as_by_modules(kind, options):
    layer = torch.nn.Linear(6, 5)
    twin, x_twin, w_twin = copy.deepcopy(layer), by_hand(kind, options), by_hand(kind, options)
    data = batches((7, 6))
    expected = train(lambda x: F.linear(x_twin(x), w_twin(twin.weight), twin.bias), [*twin.parameters()], data)
    make = kind.with_args(**options)
    tool = FakeQuantization({"linear": {"input": make, "weight": make}})
    with amanda.apply(tool):
        found = train(layer, [*layer.parameters()], data)
    same(found, expected)
    for row, module in zip(tool.rows(), (x_twin, w_twin), strict=True):
        assert torch.equal(row.scale, module.scale)
        assert torch.equal(row.zero_point, module.zero_point)


def test_values_that_are_clamped_have_no_gradient():
    x = torch.tensor([[-1.0, 0.3, 1.0]])
    leaf = torch.tensor([[-9.0, -0.5, 0.3, 1.0, 9.0]], requires_grad=True)
    wide = leaf * 1
    tool = FakeQuantization({"neg": {0: MinMaxObserver.with_args(dtype=torch.quint8)}})
    with amanda.apply(tool):
        for tensor in (x, wide):
            y = torch.neg(tensor)
            tool.observe = False
        y.sum().backward()
    assert leaf.grad.tolist() == [[0.0, -1.0, -1.0, -1.0, 0.0]]


def test_a_convolutional_network_trains_as_one_with_modules():
    class Network(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = torch.nn.Conv2d(3, 8, 3)
            self.norm = torch.nn.BatchNorm2d(8)
            self.classes = torch.nn.Linear(8, 4)

        def forward(self, x):
            return self.classes(F.relu_(self.norm(self.conv(x))).mean((2, 3)))

    class ByHand(Network):
        def __init__(self):
            super().__init__()
            self.quantizers = [FakeQuantize(observer=MovingAverageMinMaxObserver, dtype=torch.quint8) for _ in "12"]
            self.weight_quantizers = [
                FakeQuantize(
                    observer=MovingAveragePerChannelMinMaxObserver,
                    quant_min=-128,
                    quant_max=127,
                    dtype=torch.qint8,
                    qscheme=torch.per_channel_symmetric,
                )
                for _ in "12"
            ]

        def forward(self, x):
            (x1, x2), (w1, w2) = self.quantizers, self.weight_quantizers
            x = F.relu(self.norm(F.conv2d(x1(x), w1(self.conv.weight), self.conv.bias))).mean((2, 3))
            return F.linear(x2(x), w2(self.classes.weight), self.classes.bias)

    model, twin = Network(), ByHand()
    twin.load_state_dict(model.state_dict(), strict=False)
    data = batches((4, 3, 6, 6), steps=20)
    expected = train(twin, [*twin.parameters()], data)
    with amanda.apply(FakeQuantization()):
        found = train(model, [*model.parameters()], data)
    same(found, expected)


# ---- where modules can't go ------------------------------------------------------------------------------------------

PRODUCTS = {
    "matmul": (lambda a, b: a @ b, {"self": 0, "other": 1}, [(4, 6), (6, 5)]),
    "add": (lambda a, b: a + b, {"self": 0, "other": 1}, [(4, 6), (4, 6)]),
    "bmm": (torch.bmm, {0: 0, "mat2": 1}, [(2, 4, 6), (2, 6, 3)]),
    "scaled_dot_product_attention": (
        F.scaled_dot_product_attention,
        {"query": 0, "key": 1, "value": 2},
        [(2, 2, 5, 4), (2, 2, 7, 4), (2, 2, 7, 4)],
    ),
}


@pytest.mark.parametrize("name", PRODUCTS)
@pytest.mark.parametrize("which", ["minmax", "moving"])
def test_operators_that_no_module_reaches(name, which):
    program, positions, shapes = PRODUCTS[name]
    kind, options = OBSERVERS[which]
    modules = [by_hand(kind, options) for _ in shapes]
    data = batches(*shapes)

    def quantised(*inputs):
        return program(*[module(x) for module, x in zip(modules, inputs, strict=True)])

    expected = train(quantised, [], data)
    tool = FakeQuantization({name: {position: kind.with_args(**options) for position in positions}})
    with amanda.apply(tool):
        found = train(program, [], data)
    same(found, expected)
    assert [row.position for row in tool.rows()] == list(positions)


def test_outputs_are_quantised_after_the_operator():
    module, data = by_hand(*OBSERVERS["minmax"]), batches((3, 4), (3, 4))
    expected = [module(a + b) for a, b in data]
    with amanda.apply(FakeQuantization({}, outputs={"add": {0: MinMaxObserver.with_args(dtype=torch.quint8)}})):
        found = [a + b for a, b in data]
    same(found, expected)


def test_the_attention_of_a_whole_transformer_layer_is_quantised_by_default():
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    tool = FakeQuantization()
    with amanda.apply(tool):
        layer(torch.randn(2, 5, 8)).square().sum().backward()
    quantised = [(row.name.removeprefix("aten::"), row.position) for row in tool.rows()]
    attention = [("scaled_dot_product_attention", position) for position in ("query", "key", "value")]
    linear = [("linear", "input"), ("linear", "weight")]
    assert quantised == [*linear, *attention, *linear * 3]
    assert all(parameter.grad is not None for parameter in layer.parameters())


def test_numbers_and_integers_are_left_alone():
    tool = FakeQuantization({"add": {"self": int8_activation, "other": int8_activation}})
    x = torch.arange(3)
    with amanda.apply(tool):
        assert (x + 3).tolist() == [3, 4, 5]
        assert tool.rows() == []
        x.float() + 3
    assert [row.position for row in tool.rows()] == ["self"]


# ---- observers -------------------------------------------------------------------------------------------------------


def test_observers_go_on_from_scope_to_scope():
    layer, data = torch.nn.Linear(3, 2), batches((4, 3))
    tool, module = FakeQuantization({"linear": {"input": int8_activation}}), by_hand(*OBSERVERS["moving"])
    for (x,) in data:
        with amanda.apply(tool):
            found = layer(x)
        assert torch.equal(found, layer(module(x)))
    (row,) = tool.rows()
    assert torch.equal(row.scale, module.scale)
    assert (row.quant_min, row.quant_max, row.side, row.name) == (0, 255, "input", "aten::linear")


def test_observing_and_quantising_are_switched_apart():
    layer, module, (x, y) = torch.nn.Linear(3, 2), by_hand(*OBSERVERS["minmax"]), (torch.randn(4, 3) for _ in "xy")
    tool = FakeQuantization({"linear": {"input": MinMaxObserver.with_args(dtype=torch.quint8)}})
    module.disable_fake_quant()
    tool.quantize = False
    with amanda.apply(tool):
        same([layer(x)], [layer(module(x))])
        module.enable_fake_quant(), module.disable_observer()
        tool.quantize, tool.observe = True, False
        same([layer(y * 9)], [layer(module(y * 9))])
        assert torch.equal(tool.rows()[0].scale, module.scale)
        tool.quantize = False
        same([layer(y)], [F.linear(y, layer.weight, layer.bias)])


def test_a_histogram_observer_works_as_well():
    make, x = HistogramObserver.with_args(dtype=torch.quint8), torch.randn(50, 3)
    module, tool = FakeQuantize(observer=HistogramObserver, dtype=torch.quint8), FakeQuantization({"relu": {0: make}})
    with amanda.apply(tool):
        found = torch.relu(x)
    assert torch.equal(found, torch.relu(module(x)))


def test_each_place_has_its_own_observer():
    tool = FakeQuantization({"relu": {0: int8_activation}})
    with amanda.apply(tool):
        for scale in (1.0, 2.0):
            torch.relu(torch.randn(100) * scale)
        torch.relu(torch.randn(100) * 10)
    first, second = tool.rows()
    assert first.scale < second.scale / 4
    assert first.op_id != second.op_id


def test_an_operand_without_a_range_is_an_error():
    tool = FakeQuantization({"relu": {"self": int8_activation}})
    tool.observe = False
    with pytest.raises(
        amanda.Error, match=r"^\[quantization\] input 'self' of aten::relu \(.*test_quantization_tool.py:"
    ) as e:
        with amanda.apply(tool):
            torch.relu(torch.ones(2))
    assert str(e.value).endswith("has no range yet; run the program with observe = True first")


def test_misuse_is_told(says):
    with says(
        TypeError,
        "[quantization] input 'weight' of 'linear' needs something that makes an observer, such as int8_activation; got 8",
    ):
        FakeQuantization({"linear": {"weight": 8}})
    with pytest.raises(ValueError, match="kernel"):
        with amanda.apply(FakeQuantization({"linear": {"kernel": int8_weight}})):
            F.linear(torch.ones(1, 2), torch.ones(1, 2))


def test_the_defaults_name_inputs_that_exist():
    square, row = torch.ones(2, 2), torch.ones(2)
    programs = {
        "linear": lambda: F.linear(torch.ones(1, 2), torch.ones(1, 2)),
        "conv1d": lambda: F.conv1d(torch.ones(1, 1, 3), torch.ones(1, 1, 2)),
        "conv2d": lambda: F.conv2d(torch.ones(1, 1, 3, 3), torch.ones(1, 1, 2, 2)),
        "conv3d": lambda: F.conv3d(torch.ones(1, 1, 3, 3, 3), torch.ones(1, 1, 2, 2, 2)),
        "matmul": lambda: square @ square,
        "mm": lambda: torch.mm(square, square),
        "mv": lambda: torch.mv(square, row),
        "addmm": lambda: torch.addmm(row, square, square),
        "addmv": lambda: torch.addmv(row, square, row),
        "bmm": lambda: torch.bmm(square[None], square[None]),
        "baddbmm": lambda: torch.baddbmm(square[None], square[None], square[None]),
        "addbmm": lambda: torch.addbmm(square, square[None], square[None]),
        "_grouped_mm": lambda: F.grouped_mm(
            torch.ones(4, 4), torch.ones(1, 4, 4), offs=torch.tensor([4], dtype=torch.int32)
        ),
        "scaled_dot_product_attention": lambda: F.scaled_dot_product_attention(*[torch.ones(1, 2, 2)] * 3),
    }
    assert set(programs) == set(INT8)
    for name, program in programs.items():
        tool = FakeQuantization()
        with amanda.apply(tool):
            program()
        assert [operand.position for operand in tool.rows()] == list(INT8[name])


def test_under_torch_func_gradients_are_those_of_modules():
    x, w, module = torch.randn(4, 3), torch.randn(2, 3), by_hand(*OBSERVERS["minmax"])

    def loss(w, x):
        return F.linear(x, w).square().sum()

    expected = torch.autograd.grad(F.linear(x, module(p := w.clone().requires_grad_())).square().sum(), p)
    with amanda.apply(FakeQuantization({"linear": {"weight": MinMaxObserver.with_args(dtype=torch.quint8)}})):
        found = torch.func.grad(loss)(w, x)
    same([found], [*expected])


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_with_fixed_ranges_a_checkpointed_region_is_recomputed_as_it_was(use_reentrant):
    model, x, tool = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU()), torch.randn(3, 4), FakeQuantization()

    def gradients(run):
        model.zero_grad()
        run(x.clone().requires_grad_() * 1).square().sum().backward()
        return [parameter.grad.clone() for parameter in model.parameters()]

    with amanda.apply(tool):
        gradients(model)
        gradients(lambda x: checkpoint(model, x, use_reentrant=use_reentrant))
        tool.observe = False
        expected = gradients(model)
        found = [gradients(lambda x: checkpoint(model, x, use_reentrant=use_reentrant)) for _ in range(2)]
    same(found[0] + found[1], expected * 2)


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # torch's: it has no rule for vmap
def test_under_vmap_the_range_is_that_of_all_samples():
    x, w, module = torch.randn(4, 3), torch.randn(2, 3), by_hand(*OBSERVERS["minmax"])
    make = MinMaxObserver.with_args(dtype=torch.quint8)

    def loss(w, x):
        return F.linear(x, w).square().sum()

    tool = FakeQuantization({"linear": {"input": make}})
    expected = F.linear(module(x), w)
    with amanda.apply(tool):
        found = torch.vmap(F.linear, (0, None))(x, w)
        torch.testing.assert_close(found, expected)
        samples = torch.vmap(torch.func.grad(loss), (None, 0))(w, x)
    torch.testing.assert_close(samples.sum(0), torch.func.grad(loss)(w, module(x)))


def test_a_layer_that_runs_as_one_operator_is_refused(says):
    layer, x = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval(), torch.randn(2, 3, 8)
    with says(
        amanda.Error,
        "[FakeQuantization] aten::_transformer_encoder_layer_fwd is a whole layer in one operator, whose weights can't be "
        "edited; call torch.backends.mha.set_fastpath_enabled(False) first",
    ):
        with amanda.apply(FakeQuantization()), torch.no_grad():
            layer(x)
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with amanda.apply(FakeQuantization()), torch.no_grad():
            edited = layer(x)
        assert not torch.equal(edited, layer(x))
    finally:
        torch.backends.mha.set_fastpath_enabled(True)


# ---- the example -----------------------------------------------------------------------------------------------------


def test_the_examples_network_recovers_from_rounding():
    example = ROOT / "examples" / "python" / "quantization_aware_training.py"
    # The same kernels on each processor: on one, the accuracy after training is 90.6 to 94.1 with those of other sets.
    sets = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"}
    command, environment = [sys.executable, example], os.environ | sets
    printed = subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout
    shares = re.findall(r"^(float32|3 bits|3 bits, fine-tuned) +(\d+\.\d)%$", printed, flags=re.MULTILINE)
    exact, rounded, tuned = (float(share) for _, share in shares)
    assert exact > 90
    assert rounded < tuned <= 100
    assert tuned > exact - 5
    assert printed.count("scaled_dot_product_attention") == 3
