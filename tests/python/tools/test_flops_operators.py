"""Flops: no operator of PyTorch that multiplies is passed over in silence."""

import pathlib
import warnings

import amanda
import pytest
import torch
import torch.autograd.forward_ad as forward_ad
import torch.nn.functional as F
from amanda import _tools
from amanda.tools.flops import Flops
from amanda.tools.quantization import DynamicQuantization, StaticQuantization
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

REVIEWED = pathlib.Path(__file__).parent / "operators_without_products.txt"
NOT_PYTORCHS = ("_test", "static_runtime")  # PyTorch's own tests, and an executor that is no more


def reviewed():
    names, namespace = set(), ""
    for line in REVIEWED.read_text().splitlines():
        if line.startswith("#"):
            continue
        words = line.split()
        if words[0].endswith("::"):
            namespace = words.pop(0)
        names.update(namespace + word for word in words)
    return names


def counted(program, **options):
    flops = Flops(**options)
    with amanda.apply(flops):
        program()
    return flops


def expected(program):
    with FlopCounterMode(display=False) as counter:
        program()
    return counter.get_total_flops()


# ---- the list ----------------------------------------------------------------------------------------------------------


def test_every_operator_of_pytorch_is_counted_listed_or_known_to_multiply_nothing(fresh_python):
    """Of a process that has imported torch alone: parts of it that are imported later define composite operators."""
    names = fresh_python("import torch; print(*torch._C._dispatch_get_all_op_names())").split()
    there = {name.partition(".")[0] for name in names}
    own = {name for name in there if torch_namespace(name) and not name.startswith(NOT_PYTORCHS)}
    unknown = own - set(_tools.flop_operators()) - reviewed()
    assert not unknown, (
        f"new in torch {torch.__version__}: {sorted(unknown)}: does it multiply? Then it belongs into "
        f"tools/flops/torch_operators.cpp, else into {REVIEWED.name}"
    )


def torch_namespace(name):
    """Is it PyTorch's own? Other libraries that are imported define operators, too: these are listed as they run."""
    schemas = {line.split("::")[0] for line in reviewed() | set(_tools.flop_operators())}
    return name.split("::")[0] in schemas


def test_no_operator_is_both_counted_and_known_to_multiply_nothing():
    assert not set(_tools.flop_operators()) & reviewed()


# ---- one operator after the other, against a count by hand -------------------------------------------------------------


def int8(*sizes):
    return torch.ones(sizes, dtype=torch.int8)


def four_bits():
    weight = torch.zeros(32, 64, dtype=torch.int32)
    packed = torch._convert_weight_to_int4pack_for_cpu(weight, 1)
    return torch._weight_int4pack_mm_for_cpu(torch.ones(3, 64).bfloat16(), packed, 32, torch.ones(2, 32, 2).bfloat16())


def grouped(first, second, ends):
    offsets = torch.tensor(ends, dtype=torch.int32) if ends else None
    return lambda: torch._grouped_mm(torch.ones(first).bfloat16(), torch.ones(second).bfloat16(), offs=offsets)


def packed_linear(name, *rest, dtype=torch.qint8):
    prepack = torch.ops.quantized.linear_prepack_fp16 if dtype is None else torch.ops.quantized.linear_prepack
    weight = torch.ones(5, 4)
    packed = prepack(weight if dtype is None else torch.quantize_per_tensor(weight, 1.0, 0, dtype))
    return getattr(torch.ops.quantized, name)(rest[0], packed, *rest[1:])


CALLS = {
    "_addmm_activation": (
        lambda: torch._addmm_activation(torch.ones(5), torch.ones(3, 4), torch.ones(4, 5)),
        3 * 4 * 5,
    ),
    "addmm_": (lambda: torch.ones(3, 5).addmm_(torch.ones(3, 4), torch.ones(4, 5)), 3 * 4 * 5),
    "baddbmm_": (lambda: torch.ones(2, 3, 5).baddbmm_(torch.ones(2, 3, 4), torch.ones(2, 4, 5)), 2 * 3 * 4 * 5),
    "addbmm": (lambda: torch.addbmm(torch.ones(3, 5), torch.ones(2, 3, 4), torch.ones(2, 4, 5)), 2 * 3 * 4 * 5),
    "mv": (lambda: torch.mv(torch.ones(3, 4), torch.ones(4)), 3 * 4),
    "addmv_": (lambda: torch.ones(3).addmv_(torch.ones(3, 4), torch.ones(4)), 3 * 4),
    "dot": (lambda: torch.dot(torch.ones(4), torch.ones(4)), 4),
    "matmul of vectors": (lambda: torch.ones(4) @ torch.ones(4), 4),
    "_int_mm": (lambda: torch._int_mm(int8(32, 16), int8(16, 8)), 32 * 16 * 8),
    "_weight_int8pack_mm": (
        lambda: torch._weight_int8pack_mm(torch.ones(32, 16).bfloat16(), int8(8, 16), torch.ones(8).bfloat16()),
        32 * 16 * 8,
    ),
    "_weight_int4pack_mm_for_cpu": (four_bits, 3 * 64 * 32),
    "_grouped_mm, groups of rows": (grouped((16, 8), (2, 8, 32), [8, 16]), 16 * 8 * 32),
    "_grouped_mm, groups of both": (grouped((2, 16, 8), (2, 8, 32), None), 2 * 16 * 8 * 32),
    "_foreach_mm": (
        lambda: torch._foreach_mm([torch.ones(2, 3), torch.ones(4, 5)], [torch.ones(3, 6), torch.ones(5, 7)]),
        2 * 3 * 6 + 4 * 5 * 7,
    ),
    "conv_tbc": (lambda: torch.conv_tbc(torch.ones(9, 2, 4), torch.ones(3, 4, 5), torch.ones(5)), 7 * 2 * 3 * 4 * 5),
    "mkldnn_linear": (lambda: F.linear(torch.ones(3, 4).to_mkldnn(), torch.ones(5, 4).to_mkldnn()), 3 * 4 * 5),
    "quantized::linear": (
        lambda: packed_linear("linear", torch.quantize_per_tensor(torch.ones(3, 4), 1.0, 0, torch.quint8), 1.0, 0),
        3 * 4 * 5,
    ),
    "quantized::linear_dynamic": (lambda: packed_linear("linear_dynamic", torch.ones(2, 3, 4)), 2 * 3 * 4 * 5),
    "quantized::linear_dynamic_fp16": (
        lambda: packed_linear("linear_dynamic_fp16", torch.ones(3, 4), dtype=None),
        3 * 4 * 5,
    ),
}


@pytest.mark.parametrize(("program", "products"), CALLS.values(), ids=CALLS)
def test_products_by_hand(program, products):
    flops = counted(program)
    assert flops.total == 2 * products
    assert flops.uncounted_products == {}


GRADIENTS = {
    "mv": (lambda a, b: a @ b, (3, 4), (4,)),
    "addbmm": (lambda a, b: torch.addbmm(torch.ones(3, 5), a, b), (2, 3, 4), (2, 4, 5)),
    "conv_tbc": (lambda a, b: torch.conv_tbc(a, b, torch.ones(5)), (9, 2, 4), (3, 4, 5)),
}


@pytest.mark.parametrize(("program", "first", "second"), GRADIENTS.values(), ids=GRADIENTS)
def test_a_gradient_takes_as_many_or_is_listed(program, first, second):
    a, b = torch.randn(first, requires_grad=True), torch.randn(second, requires_grad=True)
    forward = counted(lambda: program(a, b)).total
    flops = counted(lambda: program(a, b).sum().backward())
    assert forward > 0
    assert flops.total == 3 * forward or any("Backward" in name for name in flops.uncounted_products)


def test_the_encoder_layer_that_pytorch_fuses():
    right = 2 * 32 * 64 * (192 + 64 + 128 + 128) + 4 * 2 * 4 * 16 * 16 * 16
    for activation in ("relu", "gelu"):
        layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, activation=activation).eval()
        with torch.no_grad():
            flops = counted(lambda layer=layer: layer(torch.randn(2, 16, 64)))
        assert (flops.total, flops.uncounted_products) == (right, {})


def test_a_product_inside_an_operator_in_which_others_were_counted_is_listed():
    flops = counted(lambda: torch.linalg.pinv(torch.randn(4, 3)))
    assert flops.by_operator() == {"aten::mm": 2 * 3 * 3 * 4}
    assert flops.uncounted_products == {"aten::_linalg_svd": 1}


def test_the_derivative_of_an_operator_whose_products_are_inside_is_listed():
    layer = nn.Bilinear(3, 4, 5)
    flops = counted(lambda: layer(torch.randn(2, 3), torch.randn(2, 4)).sum().backward())
    assert flops.uncounted_products == {"TrilinearBackward0": 1}


# ---- recurrent layers --------------------------------------------------------------------------------------------------


def layers(kind, **options):
    return nn.LSTM(6, 5, **options) if kind == "lstm" else getattr(nn, kind.upper())(6, 5, **options)


@pytest.mark.parametrize("packed", [False, True], ids=["batch", "packed"])
@pytest.mark.parametrize(
    "options",
    [{}, {"num_layers": 2}, {"bidirectional": True, "num_layers": 3}, {"batch_first": True}, {"bias": False}],
    ids=str,
)
@pytest.mark.parametrize("kind", ["lstm", "gru", "rnn"])
def test_recurrent_layers_are_the_products_that_they_consist_of(kind, options, packed):
    """Without oneDNN's fused layer, PyTorch calls the products one by one, as FlopCounterMode counts them."""
    model, x = layers(kind, **options), torch.randn(4, 4, 6, requires_grad=True)
    states = torch.zeros(model.num_layers * (1 + model.bidirectional), 4, 5, requires_grad=True)
    given = nn.utils.rnn.pack_padded_sequence(x, [4, 3, 3, 1], batch_first=model.batch_first) if packed else x

    def forward():
        return model(given, (states, states) if kind == "lstm" else states)[0]

    def train():
        made = forward()
        (made.data if packed else made).sum().backward(retain_graph=True)

    for program in (forward, train):
        torch._C._set_mkldnn_enabled(False)
        try:
            right = expected(program)
        finally:
            torch._C._set_mkldnn_enabled(True)
        assert right > 0
        flops = counted(program)
        assert (flops.total, flops.uncounted_products) == (right, {})
    with torch.no_grad():
        assert counted(forward).total == counted(forward, uncounted=False).total
    assert counted(lambda: torch.no_grad()(forward)()).total == counted(forward).total


@pytest.mark.filterwarnings("ignore:LSTM with projections")
def test_a_projection():
    model = nn.LSTM(6, 5, 2, proj_size=3)
    with torch.no_grad():
        flops = counted(lambda: model(torch.randn(7, 4, 6)))
    assert flops.total == 2 * 7 * 4 * (20 * (6 + 3) + 20 * (3 + 3) + 2 * 5 * 3)


@pytest.mark.parametrize(("cell", "gates"), [(nn.LSTMCell, 4), (nn.GRUCell, 3), (nn.RNNCell, 1)])
def test_cells(cell, gates):
    assert counted(lambda: cell(6, 5)(torch.randn(4, 6))).total == 2 * 4 * gates * 5 * (6 + 5)


def test_cudnn_recurrent_layers_by_their_weights():
    model = nn.LSTM(6, 5, 2, bidirectional=True, proj_size=3, device="meta")
    weights = list(model.parameters())
    x, h, c = (torch.empty(sizes, device="meta") for sizes in ((7, 4, 6), (4, 4, 3), (4, 4, 5)))
    flops = counted(lambda: torch._cudnn_rnn(x, weights, 5, None, h, c, 2, 5, 3, 2, False, 0.0, False, True, [], None))
    assert flops.total == 2 * 7 * 4 * sum(weight.numel() for weight in weights if weight.dim() == 2)


# ---- quantized models --------------------------------------------------------------------------------------------------


def quantized(model, kind, dtype=torch.qint8):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.ao.quantization.quantize_dynamic(nn.Sequential(model), {kind}, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.qint8, torch.float16], ids=str)
def test_dynamically_quantized_linear_layers(dtype):
    assert counted(lambda: quantized(nn.Linear(6, 5), nn.Linear, dtype)(torch.randn(4, 6))).total == 2 * 4 * 6 * 5


@pytest.mark.parametrize("packed", [False, True], ids=["batch", "packed"])
@pytest.mark.parametrize("options", [{}, {"num_layers": 2, "bidirectional": True}], ids=str)
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_dynamically_quantized_recurrent_layers_take_as_many_as_the_others(kind, options, packed):
    model, x = kind(6, 5, **options), torch.randn(4, 4, 6)
    given = nn.utils.rnn.pack_padded_sequence(x, [4, 3, 3, 1]) if packed else x
    other = quantized(model, kind)
    with torch.no_grad():
        flops = counted(lambda: other(given))
        assert flops.total == counted(lambda: model(given)).total > 0
    assert flops.uncounted_products == {}


@pytest.mark.parametrize(("cell", "gates"), [(nn.LSTMCell, 4), (nn.GRUCell, 3), (nn.RNNCell, 1)])
def test_dynamically_quantized_cells(cell, gates):
    model = quantized(cell(6, 5), cell)
    assert counted(lambda: model(torch.randn(4, 6))).total == 2 * 4 * gates * 5 * (6 + 5)


def test_a_product_that_a_tool_replaced_is_listed():
    tool = amanda.Tool("replaces")
    tool.add_inst_for_op(lambda context: context.replace_op(lambda x, w, b: x.new_zeros(4, 5)), ops="linear")
    flops = Flops()
    with amanda.apply(tool, flops):
        nn.Linear(6, 5)(torch.randn(4, 6))
    assert flops.uncounted_products == {"aten::linear": 1}, "its replacements' operators are not the program's"
    assert "not counted, may multiply (calls): aten::linear 1" in " ".join(str(flops.table()).split())


MODELS = {
    "linear": (lambda: nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)), (4, 2, 6)),
    "a product": (lambda: Product(), (4, 6)),
    "lstm": (lambda: nn.LSTM(6, 5, 2, bidirectional=True), (7, 4, 6)),
    "gru": (lambda: nn.GRU(6, 5), (7, 4, 6)),
    "cell": (lambda: nn.LSTMCell(6, 5), (4, 6)),
}


class Product(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 5))

    def forward(self, x):
        return x @ self.weight


@pytest.mark.parametrize("first", [False, True], ids=["after the tool", "before the tool"])
@pytest.mark.parametrize(("make", "sizes"), MODELS.values(), ids=MODELS)
def test_what_dynamic_quantization_runs_takes_as_many_as_the_others(make, sizes, first):
    """By FlopCounterMode, on the model without the tool."""
    model, x = make(), torch.randn(sizes)
    torch._C._set_mkldnn_enabled(False)
    try:
        with torch.no_grad():
            right = expected(lambda: model(x))
    finally:
        torch._C._set_mkldnn_enabled(True)
    flops = Flops()
    tools = [flops, DynamicQuantization()] if first else [DynamicQuantization(), flops]
    with torch.no_grad(), amanda.apply(*tools):
        model(x)
    assert (flops.total, flops.uncounted_products) == (right, {})
    assert right > 0
    assert all("quantized" in name for name in flops.by_operator())


CONVOLUTIONS = {
    "conv1d": (lambda: nn.Conv1d(4, 6, 3, stride=2), (2, 4, 9)),
    "conv2d": (lambda: nn.Conv2d(4, 6, 3, padding=1, groups=2), (2, 4, 9, 8)),
    "conv2d, same": (lambda: nn.Conv2d(4, 6, (5, 3), padding="same"), (2, 4, 9, 8)),
    "conv3d": (lambda: nn.Conv3d(2, 3, 2, dilation=2), (2, 2, 6, 6, 6)),
}


@pytest.mark.parametrize(("make", "sizes"), CONVOLUTIONS.values(), ids=CONVOLUTIONS)
def test_what_static_quantization_runs_takes_as_many_as_the_others(make, sizes):
    model, x = nn.Sequential(make(), nn.ReLU()), torch.randn(sizes)
    right = expected(lambda: model(x))
    quantization, flops = StaticQuantization(), Flops(uncounted=False)
    with torch.no_grad(), amanda.apply(quantization):
        model(x)
        quantization.convert()
        with amanda.apply(flops):
            model(x)
            with amanda.apply(flops):
                model(x)
    assert (flops.total, flops.uncounted_products) == (2 * right, {})
    assert flops.by_module() == {"": 2 * right, "0": 2 * right}


def test_a_tool_that_is_narrowed_counts_what_it_asks_for():
    model, x = nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 3)), torch.randn(4, 6)
    first, none = Flops(), Flops()
    first.narrow(modules="0")
    none.narrow(ops="addmm")
    with torch.no_grad(), amanda.apply(DynamicQuantization(), first, none):
        model(x)
    assert first.by_operator() == {"quantized::linear_dynamic": 2 * 4 * 6 * 5}
    assert none.total == 0


PACKED = {
    "conv1d": (nn.Conv1d(4, 6, 3, stride=2), (2, 4, 9)),
    "conv2d": (nn.Conv2d(4, 6, 3, padding=1, groups=2), (2, 4, 9, 8)),
    "conv3d": (nn.Conv3d(2, 3, 2, dilation=2), (2, 2, 6, 6, 6)),
    "conv_transpose2d": (nn.ConvTranspose2d(4, 6, 3, stride=2, groups=2), (2, 4, 5, 5)),
}


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", PACKED)
def test_quantized_convolutions_take_as_many_as_the_others(name, dynamic):
    layer, sizes = PACKED[name]
    weight = torch.quantize_per_tensor(layer.weight.detach(), 0.1, 0, torch.qint8)
    options = [[*layer.stride], [*layer.padding], [*layer.dilation], layer.groups]
    if "transpose" in name:
        options.insert(2, [*layer.output_padding])
    packed = getattr(torch.ops.quantized, f"{name}_prepack")(weight, None, *options)
    kernel = getattr(torch.ops.quantized, f"{name}_dynamic" if dynamic else name)
    x = torch.randn(sizes)
    given = x if dynamic else torch.quantize_per_tensor(x, 0.1, 0, torch.quint8)
    right = expected(lambda: layer(x))

    def run():
        for _ in range(2):
            kernel(given, packed, *([] if dynamic else [1.0, 0]))

    flops = counted(run)
    assert (flops.total, flops.uncounted_products) == (2 * right, {})
    assert right > 0


# ---- forward-mode differentiation --------------------------------------------------------------------------------------


def test_tangents_are_products_too():
    a, b = torch.randn(3, 4), torch.randn(4, 5)
    x, filters = torch.randn(2, 3, 8, 8), torch.randn(4, 3, 3, 3)

    def program(first, second):
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(a, a) if first else a
            torch.mm(dual, forward_ad.make_dual(b, b) if second else b)
            F.linear(dual, forward_ad.make_dual(b.t(), b.t()) if second else b.t())
            dual = forward_ad.make_dual(x, x) if first else x
            F.conv2d(dual, forward_ad.make_dual(filters, filters) if second else filters)

    for first, second in ((0, 0), (1, 0), (0, 1), (1, 1)):
        flops = counted(lambda first=first, second=second: program(first, second))
        assert flops.total == (1 + first + second) * counted(lambda: program(0, 0)).total
        assert flops.uncounted_products == {}
    # With one tangent FlopCounterMode also counts the product with zeros, which PyTorch does not compute.
    assert flops.total == expected(lambda: program(1, 1))


def test_tangents_that_operands_do_not_show_are_listed():
    a, b = torch.randn(3, 4), torch.randn(4, 5)
    once = 2 * 3 * 4 * 5
    flops = counted(lambda: torch.func.jvp(torch.mm, (a, b), (a, b)))
    assert (flops.total, flops.uncounted_products) == (3 * once, {})
    flops = counted(lambda: torch.func.jvp(lambda x: F.linear(x, b.t()), (a,), (a,)))  # a view of what has a tangent
    assert (flops.total, flops.uncounted_products) == (once, {"aten::mm": 1})
    flops = counted(lambda: torch.func.grad(lambda x: (x @ b).sum())(a))
    assert flops.uncounted_products == {}
    layer = nn.Linear(4, 5)
    flops = counted(lambda: torch.func.jvp(torch.func.grad(lambda x: layer(x).pow(2).sum()), (a,), (a,)))
    assert flops.uncounted_products == {"aten::addmm": 1, "AddmmBackward0": 1}


# ---- attention on the CPU ----------------------------------------------------------------------------------------------


def test_the_table_says_how_to_count_attention_on_the_cpu():
    layer = nn.MultiheadAttention(8, 2, batch_first=True)
    x = torch.randn(2, 4, 8)
    flops = counted(lambda: layer(x, x, x, need_weights=False))
    assert flops.uncounted_products == {"aten::_scaled_dot_product_flash_attention_for_cpu": 1}
    told = " ".join(str(flops.table()).split())
    assert (
        "fused attention on the CPU was not counted (1 call): count it by Flops(cpu_attention=True), or amanda " in told
    )
    assert "flops --cpu-attention" in told
    flops = counted(lambda: layer(x, x, x, need_weights=False), cpu_attention=True)
    assert (flops.uncounted_products, "not counted" in str(flops.table())) == ({}, False)


def test_without_the_list_of_all_operators_products_are_still_listed():
    flops = counted(lambda: torch.relu(torch.linalg.qr(torch.randn(4, 3))[0]), uncounted=False)
    assert flops.uncounted == flops.uncounted_products == {"aten::linalg_qr": 1}


def test_an_operator_of_another_library_may_multiply():
    with torch.library._scoped_library("flops_other", "FRAGMENT") as library:
        library.define("mystery(Tensor x) -> Tensor")
        library.impl("mystery", torch.clone, "CPU")
        flops = counted(lambda: (torch.ops.flops_other.mystery(torch.ones(2)), torch.relu(torch.ones(2))))
    assert flops.uncounted_products == {"flops_other::mystery": 1}
