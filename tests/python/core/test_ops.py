"""amanda.ops: every name is an operator's, and the groups hold what models run."""

import re

import amanda
import pytest
import torch
import torch.nn.functional as F
from amanda.tools.mapping import MappingTool
from repository import ROOT
from transformers.pytorch_utils import Conv1D


class Kinds(amanda.Tool):
    """The kinds of the operators in these groups, as they run."""

    def __init__(self, ops):
        super().__init__()
        self.depends_on(MappingTool(amanda.ops.rules))
        self.seen = []
        self.add_inst_for_op(self.analyze, ops=ops)

    def analyze(self, context):
        self.seen.append((context["op_name"], context["op_kind"]))


def seen(ops, program, *inputs):
    tool = Kinds(ops)
    with amanda.apply(tool):
        program(*inputs)
    return tool.seen


NAMES = [(group, name) for group, names in amanda.ops.groups.items() for name in names]


def test_the_group_in_cpp_is_the_same():
    header = (ROOT / "drivers" / "torch" / "include" / "amanda" / "torch.h").read_text()
    (names,) = re.findall(r"OpFilter linear_like\(\) \{\s+return \{([^}]*)\};", header)
    assert tuple(re.findall(r'"(\w+)"', names)) == amanda.ops.linear_like


@pytest.mark.parametrize(("group", "name"), NAMES)
def test_each_name_is_a_registered_operators(group, name):
    assert torch._C._jit_get_schemas_for_operator(f"aten::{name}")
    assert amanda.ops.kind_of(name) == group


def test_no_operator_is_in_two_groups():
    names = [name for _, name in NAMES]
    assert len(names) == len(set(names))
    assert amanda.ops.kind_of("cat") == ""


def test_linear_like_is_what_linear_layers_run():
    assert set(amanda.ops.linear_like) == {
        name for kind in ("linear", "matmul", "fused_layer") for name in amanda.ops.groups[kind]
    }


def test_factors_are_inputs_of_every_product():
    products = ("linear", "matmul", "convolution", "transposed_convolution")
    assert set(amanda.ops.factors) == {name for kind in products for name in amanda.ops.groups[kind]}
    for name, factors in amanda.ops.factors.items():
        for schema in torch._C._jit_get_schemas_for_operator(f"aten::{name}"):
            if schema.overload_name in ("", "padding", "input"):
                assert set(factors) <= {argument.name for argument in schema.arguments}


def test_linear_in_training_and_evaluation():
    layer = torch.nn.Linear(3, 2)
    for module in (layer.train(), layer.eval()):
        for x in (torch.ones(3), torch.ones(4, 3), torch.ones(2, 4, 3)):
            assert seen(amanda.ops.linear_like, module, x) == [("linear", "linear")]


def test_gpt2s_linear_layer():
    layer = Conv1D(2, 3)
    for module in (layer.train(), layer.eval()):
        assert seen(amanda.ops.linear_like, module, torch.ones(4, 3)) == [("addmm", "matmul")]


def test_products_with_a_weight_written_out():
    weight = torch.nn.Parameter(torch.ones(3, 2))
    assert seen(amanda.ops.linear_like, lambda: torch.ones(4, 3) @ weight) == [("matmul", "matmul")]
    assert seen(amanda.ops.linear_like, lambda: torch.einsum("bi,io->bo", torch.ones(4, 3), weight)) == [
        ("bmm", "matmul")
    ]


def test_an_encoder_layer_is_one_operator_in_evaluation():
    layer = torch.nn.TransformerEncoderLayer(4, 2, dim_feedforward=8, batch_first=True)
    x = torch.ones(2, 3, 4)
    trained = seen(amanda.ops.linear_like, layer, x)
    assert trained.count(("linear", "linear")) == 4
    with torch.no_grad():
        fused = seen(amanda.ops.linear_like, layer.eval(), x)
    assert fused == [("_transformer_encoder_layer_fwd", "fused_layer")]


def test_multihead_attention_is_one_operator_in_evaluation():
    attention = torch.nn.MultiheadAttention(4, 2, batch_first=True).eval()
    x = torch.ones(2, 3, 4)
    with torch.no_grad():
        assert seen(amanda.ops.linear_like, attention, x, x, x) == [("_native_multi_head_attention", "fused_layer")]


@pytest.mark.parametrize(
    "layer",
    [
        torch.nn.Conv1d(1, 1, 1),
        torch.nn.Conv2d(1, 1, 1, padding="same"),
        torch.nn.Conv3d(1, 1, 1),
        torch.nn.ConvTranspose1d(1, 1, 1),
        torch.nn.ConvTranspose2d(1, 1, 1),
        torch.nn.ConvTranspose3d(1, 1, 1),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_convolutions(layer):
    group = amanda.ops.transposed_convolution if layer.transposed else amanda.ops.convolution
    x = torch.ones(1, 1, *[2] * (layer.weight.dim() - 2))
    ((name, kind),) = seen(group, layer, x)
    assert name in group
    assert amanda.ops.groups[kind] == group


LAYERS = {
    "normalization": [
        torch.nn.BatchNorm1d(4),
        torch.nn.InstanceNorm1d(4),
        torch.nn.LayerNorm(4),
        torch.nn.GroupNorm(2, 4),
        torch.nn.RMSNorm(4),
    ],
    "activation": [
        *(torch.nn.ReLU(), torch.nn.ReLU(inplace=True), torch.nn.ReLU6(), torch.nn.LeakyReLU(), torch.nn.PReLU()),
        *(torch.nn.RReLU(), torch.nn.ELU(), torch.nn.SELU(), torch.nn.CELU(), torch.nn.GELU(), torch.nn.SiLU()),
        *(torch.nn.Mish(), torch.nn.Sigmoid(), torch.nn.Tanh(), torch.nn.Softplus(), torch.nn.LogSigmoid()),
        *(torch.nn.GLU(), torch.nn.Threshold(0, 0), torch.nn.Hardtanh(), torch.nn.Hardsigmoid()),
        *(torch.nn.Hardswish(), torch.nn.Hardshrink(), torch.nn.Softshrink()),
    ],
}


@pytest.mark.parametrize(
    ("kind", "layer"),
    [(kind, layer) for kind, layers in LAYERS.items() for layer in layers],
    ids=lambda value: value if isinstance(value, str) else repr(value),
)
def test_layers_run_an_operator_of_their_kind(kind, layer):
    assert [kind for _, kind in seen(amanda.ops.groups[kind], layer, torch.randn(4, 4, 4))] == [kind]


def test_attention():
    q = torch.ones(1, 2, 3, 4)
    expected = [("scaled_dot_product_attention", "attention")]
    assert seen(amanda.ops.attention, F.scaled_dot_product_attention, q, q, q) == expected


def test_rules_name_every_operator_for_dependents():
    assert seen(None, lambda: F.linear(torch.ones(2, 2), torch.ones(2, 2)).cos()) == [
        ("ones", ""),
        ("ones", ""),
        ("linear", "linear"),
        ("cos", ""),
    ]
