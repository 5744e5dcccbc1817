"""The vocabulary's rules on PyTorch: words, roles, layouts, and which gradient a backward operator computes."""

import re

import amanda
import pytest
import torch
import torch.nn.functional as F
from amanda.tools.mapping import names_of, vocabulary, words
from repository import ROOT

KEYS = {"op_type", "roles", "layout", "weight_layout", "grad_roles"}


class Keys(amanda.Tool):
    """The vocabulary's keys of each operator; of each backward operator with its name."""

    def __init__(self, **asked):
        super().__init__()
        self.depends_on(vocabulary())
        self.forward, self.backward = [], []
        self.add_inst_for_op(lambda c: self.forward.append(keys(c)), **asked)
        self.add_inst_for_op(self.look_backward, backward=True, require_outputs=True, **asked)

    def look_backward(self, context):
        shapes = [None if gradient is None else tuple(gradient.shape) for gradient in context.grad_inputs]
        self.backward.append((context.backward_op.__name__, keys(context), shapes))


def keys(context):
    return {key: value for key, value in context.items() if key in KEYS}


def keys_of(program, **asked):
    tool = Keys(**asked)
    with amanda.apply(tool):
        program()
    return tool


def leaf(*shape):
    return torch.nn.Parameter(torch.randn(shape))


def test_a_small_network():
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3, bias=False),
        torch.nn.BatchNorm2d(4),
        torch.nn.ReLU(inplace=True),
        torch.nn.MaxPool2d(2),
        torch.nn.Flatten(),
        torch.nn.Linear(36, 2),
        torch.nn.Softmax(1),
    )
    x = torch.randn(2, 3, 8, 8)
    assert keys_of(lambda: model(x)).forward == [
        {"op_type": "conv2d", "roles": {"input": 0, "weight": 1}, "layout": "NCHW", "weight_layout": "OIHW"},
        {"op_type": "add", "roles": {"left": 0, "right": 1}},  # counts the batches
        {"op_type": "batch_norm", "roles": {"input": 0, "weight": 1, "bias": 2, "mean": 3, "variance": 4},
         "layout": "NCHW"},
        {"op_type": "relu", "roles": {"input": 0}},
        {"op_type": "max_pool2d", "roles": {"input": 0}, "layout": "NCHW"},
        {},  # flatten
        {"op_type": "linear", "roles": {"input": 0, "weight": 1, "bias": 2}, "weight_layout": "OI"},
        {"op_type": "softmax", "roles": {"input": 0}},
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        (lambda: torch.ones(2, 3) @ torch.ones(3, 2), {"roles": {"left": 0, "right": 1}}),
        (lambda: torch.ones(2, 3) @ leaf(3, 2),
         {"roles": {"left": 0, "right": 1, "weight": 1, "input": 0}, "weight_layout": "IO"}),
        (lambda: leaf(2, 3) @ torch.ones(3, 2),
         {"roles": {"left": 0, "right": 1, "weight": 0, "input": 1}, "weight_layout": "OI"}),
        (lambda: leaf(2, 3) @ leaf(3, 2),
         {"roles": {"left": 0, "right": 1, "weight": 1, "input": 0}, "weight_layout": "IO"}),
        (lambda: torch.bmm(torch.ones(5, 2, 3), leaf(5, 3, 2)),
         {"roles": {"left": 0, "right": 1, "weight": 1, "input": 0}, "weight_layout": "NIO"}),
        (lambda: torch.addmm(torch.ones(2), torch.ones(4, 3), leaf(3, 2)),
         {"roles": {"left": 1, "right": 2, "bias": 0, "weight": 2, "input": 1}, "weight_layout": "IO"}),
    ],
)  # fmt: skip
def test_products_have_a_weight_if_a_factor_is_a_parameter(program, expected):
    (found,) = keys_of(program, ops=names_of("matmul")).forward
    assert found == {"op_type": "matmul"} | expected


@pytest.mark.parametrize(
    ("call", "x", "weight", "layouts"),
    [
        (F.conv1d, (1, 3, 5), (4, 3, 2), ("NCL", "OIL")),
        (F.conv2d, (3, 5, 5), (4, 3, 2, 2), ("CHW", "OIHW")),
        (F.conv3d, (1, 3, 5, 5, 5), (4, 3, 2, 2, 2), ("NCDHW", "OIDHW")),
        (F.conv_transpose2d, (1, 3, 5, 5), (3, 4, 2, 2), ("NCHW", "IOHW")),
    ],
)
def test_layouts_of_convolutions(call, x, weight, layouts):
    (found,) = keys_of(lambda: call(torch.randn(x), leaf(*weight)), ops="conv*").forward
    assert (found["layout"], found["weight_layout"]) == layouts


@pytest.mark.parametrize(
    ("program", "shapes"),
    [
        (lambda x: F.conv2d(x(2, 3, 5, 5), x(4, 3, 2, 2), x(4)),
         {"input": (2, 3, 5, 5), "weight": (4, 3, 2, 2), "bias": (4,)}),
        (lambda x: F.batch_norm(x(4, 2), None, None, x(2), x(2), training=True),
         {"input": (4, 2), "weight": (2,), "bias": (2,)}),
        (lambda x: F.layer_norm(x(4, 2), (2,), x(2), x(2)), {"input": (4, 2), "weight": (2,), "bias": (2,)}),
        (lambda x: F.linear(x(2, 3), x(4, 3), x(4)), {"input": (2, 3), "weight": (4, 3), "bias": (4,)}),
        (lambda x: F.linear(x(2, 3), x(4, 3)), {"input": (2, 3), "weight": (4, 3)}),
        (lambda x: x(2, 3) @ x(3, 4), {"left": (2, 3), "right": (3, 4), "input": (2, 3), "weight": (3, 4)}),
        (lambda x: torch.addmm(x(4), x(2, 3), x(3, 4)),
         {"bias": (4,), "left": (2, 3), "right": (3, 4), "input": (2, 3), "weight": (3, 4)}),
        (lambda x: x(3) + x(3), {"left": (3,), "right": (3,)}),
        (lambda x: x(3) - x(3), {"left": (3,), "right": (3,)}),
        (lambda x: x(3) * x(3), {"left": (3,), "right": (3,)}),
        (lambda x: x(3) / x(3), {"left": (3,), "right": (3,)}),
        (lambda x: F.embedding(torch.tensor([1]), x(4, 2)), {"weight": (4, 2)}),
        *((lambda x, call=call: call(x(5)), {"input": (5,)})
          for call in (F.relu, F.relu6, F.leaky_relu, F.elu, F.gelu, F.silu, F.softplus, torch.sigmoid, torch.tanh)),
        (lambda x: F.softmax(x(5), 0), {"input": (5,)}),
        (lambda x: F.log_softmax(x(5), 0), {"input": (5,)}),
        (lambda x: F.max_pool2d(x(1, 1, 4, 4), 2), {"input": (1, 1, 4, 4)}),
        (lambda x: F.avg_pool2d(x(1, 1, 4, 4), 2), {"input": (1, 1, 4, 4)}),
    ],
)  # fmt: skip
def test_which_gradient_a_backward_operator_computes(program, shapes):
    found = {}
    for _, here, of_node in keys_of(lambda: program(leaf).sum().backward(), ops=names_of(*words())).backward:
        if here["op_type"] != "sum":
            found |= {role: of_node[position] for role, position in here["grad_roles"].items()}
    assert found == shapes


def test_an_input_that_was_not_given_has_no_gradient():
    (first, *_) = keys_of(lambda: F.conv2d(leaf(1, 1, 3, 3), leaf(1, 1, 2, 2)).sum().backward(), ops="conv2d").backward
    assert first[0] == "ConvolutionBackward0"
    assert first[1]["grad_roles"] == {"input": 0, "weight": 1}


def test_an_operator_has_the_same_roles_in_all_its_words():
    for framework in ("PyTorch", "TensorFlow", "ONNX Runtime"):
        roles = {}
        for word in words().values():
            for operator, found in word[framework].items():
                assert roles.setdefault(operator, found) == found, operator
        if framework != "ONNX Runtime":  # whose operators take operands of any rank
            assert len(roles) == sum(len(word[framework]) for word in words().values())


def test_every_role_is_an_input_of_the_operator():
    for word in words().values():
        for name, roles in word["PyTorch"].items():
            packet = getattr(torch.ops.aten, name.removeprefix("aten::"))
            schemas = [getattr(packet, overload)._schema for overload in packet.overloads()]
            assert any({argument.name for argument in schema.arguments} >= set(roles.values()) for schema in schemas), (
                name
            )


def test_names_of_a_word():
    assert names_of("conv2d", "relu") == [
        *("aten::conv2d", "tensorflow::Conv2D"),
        *("onnx::Conv", "com.microsoft::FusedConv", "com.microsoft::NhwcConv", "com.microsoft::NhwcFusedConv"),
        *("aten::relu", "aten::relu_", "tensorflow::Relu", "onnx::Relu"),
    ]
    assert names_of("max_pool2d", "max_pool3d").count("onnx::MaxPool") == 1
    with pytest.raises(ValueError, match=re.escape("[mapping] there is no word 'Conv2D'; there are conv1d, conv2d, ")):
        names_of("Conv2D")


def table():
    """The table of docs/mapping.md, from the vocabulary."""
    columns = list(next(iter(words().values())))
    lines = [f"| `op_type` | {' | '.join(columns)} | roles |", "| --- " * (len(columns) + 2) + "|"]
    for name, word in words().items():
        roles = dict.fromkeys(role for operators in word.values() for roles in operators.values() for role in roles)
        cells = [", ".join(f"`{short(operator)}`" for operator in operators) or "-" for operators in word.values()]
        lines.append(f"| `{name}` | {' | '.join(cells)} | {', '.join(roles)} |")
    return "\n".join(lines)


def short(operator):
    return operator.removeprefix("aten::").removeprefix("tensorflow::").removeprefix("onnx::")


def test_the_table_in_the_docs_is_the_vocabularys():
    assert table() in (ROOT / "docs" / "mapping.md").read_text(), f"put this into docs/mapping.md:\n{table()}"
