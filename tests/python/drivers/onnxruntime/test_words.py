"""Words for ONNX Runtime's operators: roles, layouts, and the tools that stand on them."""

import amanda
import numpy as np
import onnxruntime
import pytest
import sessions
import torch
import torch.nn.functional as F
from amanda.research.error_injection import ErrorInjection, StuckAt
from amanda.tools.flops import Flops
from amanda.tools.mapping import names_of, vocabulary, words
from amanda.tools.pruning import MagnitudePruning, VectorwisePruning
from amanda.tools.quantization import FakeQuantization
from onnx import TensorProto, helper, numpy_helper
from sessions import session
from torch.nn.utils import prune
from torch.utils.flop_counter import FlopCounterMode

drawn = np.random.default_rng(0)


def normal(*shape):
    return drawn.standard_normal(shape).astype(np.float32)


class Keys(amanda.Tool):
    def __init__(self):
        super().__init__()
        self.found = []
        self.depends_on(vocabulary())
        self.add_inst_for_op(lambda context: self.found.append(dict(context)))


def one(op, constants, *, inputs=("x",), rank=None, domain="", **attributes):
    """A session of one operator, whose other inputs are constants. `rank`: of its inputs, if it is written in the model."""
    shape = None if rank is None else [None] * rank
    node = helper.make_node(op, [*inputs, *constants], ["y"], domain=domain, **attributes)
    graph = helper.make_graph(
        [node],
        "one",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in inputs],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return session(helper.make_model(graph, opset_imports=opsets, ir_version=8), "EXTENDED")


def keys_of(made, **feeds):
    with amanda.apply(keys := Keys()):
        made.run(None, feeds)
    return keys.found


def test_every_role_is_an_input_of_the_operator():
    assert onnxruntime.__version__
    from amanda.drivers.onnxruntime import op_types

    for word in words().values():
        for name, roles in word["ONNX Runtime"].items():
            domain, _, op = name.partition("::")
            node = helper.make_node(op, [], [], domain="" if domain == "onnx" else domain)
            assert {*roles.values()} <= {*op_types.schema_of(node, {"": 24, domain: 1}).inputs}, name


@pytest.mark.parametrize(
    ("op", "x", "weight", "word", "layouts"),
    [
        ("Conv", (1, 3, 9), (4, 3, 2), "conv1d", ("NCL", "OIL")),
        ("Conv", (1, 3, 5, 5), (4, 3, 2, 2), "conv2d", ("NCHW", "OIHW")),
        ("Conv", (1, 3, 5, 5, 5), (4, 3, 2, 2, 2), "conv3d", ("NCDHW", "OIDHW")),
        ("ConvTranspose", (1, 3, 5, 5), (3, 4, 2, 2), "conv_transpose2d", ("NCHW", "IOHW")),
    ],
)
def test_the_rank_decides_the_word(op, x, weight, word, layouts):
    (found,) = keys_of(one(op, {"w": normal(*weight)}, rank=len(x)), x=normal(*x))
    expected = {"op_type": word, "roles": {"input": 0, "weight": 1}, "layout": layouts[0], "weight_layout": layouts[1]}
    assert found == expected
    (found,) = keys_of(one(op, {"w": normal(*weight)}), x=normal(*x))
    assert found == {key: value for key, value in expected.items() if key != "layout"}


@pytest.mark.parametrize(("attributes", "layout"), [({}, "IO"), ({"transB": 1}, "OI")])
@pytest.mark.parametrize(("op", "domain"), [("Gemm", ""), ("FusedMatMul", "com.microsoft")])
def test_the_layout_of_a_factor(op, domain, attributes, layout):
    made = one(op, {"w": normal(4, 4)}, domain=domain, **attributes)
    (found,) = keys_of(made, x=normal(2, 4))
    roles = {"left": 0, "right": 1, "weight": 1, "input": 0}
    assert found == {"op_type": "matmul", "roles": roles, "weight_layout": layout}


def test_a_product_of_activations_has_no_weight():
    (found,) = keys_of(one("MatMul", {}, inputs=("x", "z")), x=normal(2, 3), z=normal(3, 2))
    assert found == {"op_type": "matmul", "roles": {"left": 0, "right": 1}}


@pytest.mark.parametrize(
    ("op", "call", "x", "weight", "options"),
    [
        ("Conv", F.conv1d, (2, 4, 9), (6, 4, 3), {}),
        ("Conv", F.conv2d, (2, 4, 9, 8), (6, 2, 3, 3), {"groups": 2}),
        ("Conv", F.conv3d, (1, 4, 5, 5, 5), (6, 4, 2, 2, 2), {}),
        ("ConvTranspose", F.conv_transpose2d, (2, 4, 5, 6), (4, 3, 3, 3), {}),
        ("ConvTranspose", F.conv_transpose1d, (2, 4, 5), (4, 3, 3), {"groups": 2}),
        ("MatMul", torch.matmul, (5, 7, 4), (4, 3), {}),
        ("MatMul", torch.matmul, (5, 7, 4), (5, 4, 3), {}),
    ],
)
def test_flops_are_those_of_flop_counter_mode(op, call, x, weight, options):
    with FlopCounterMode(display=False) as counted:
        call(torch.ones(x), torch.ones(weight), **options)
    made = one(op, {"w": normal(*weight)}, **({"group": options["groups"]} if options else {}))
    with amanda.apply(flops := Flops()):
        made.run(None, {"x": normal(*x)})
    assert flops.total == counted.get_total_flops() > 0
    assert flops.uncounted == {}


def test_flops_of_a_product_of_vectors_are_not_guessed():
    made = one("MatMul", {"w": normal(4)})
    with amanda.apply(flops := Flops()):
        made.run(None, {"x": normal(4)})
    assert flops.uncounted_products == {"onnx::MatMul": 1}


CONSTANTS = {"w1": normal(16, 3, 3, 3), "b1": normal(16), "w2": normal(64, 8), "w3": normal(4, 8), "b3": normal(4)}


def network(constants=CONSTANTS):
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["h1"], "conv/Conv"),
        helper.make_node("Relu", ["h1"], ["h2"], "relu/Relu"),
        helper.make_node("Flatten", ["h2"], ["h3"], "flatten/Flatten"),
        helper.make_node("MatMul", ["h3", "w2"], ["h4"], "hidden/MatMul"),
        helper.make_node("Gemm", ["h4", "w3", "b3"], ["y"], "head/Gemm", transB=1),
    ]
    return sessions.model(nodes, constants=constants)


X = normal(2, 3, 4, 4)
LEVELS = ["DISABLED", "BASIC", "EXTENDED"]


def of_edited(pruned, level):
    return session(network(CONSTANTS | pruned), level).run(None, {"x": X})[0]


@pytest.mark.parametrize("level", LEVELS)
def test_pruned_as_a_file_that_is_pruned_by_hand(level):
    by_hand = {}
    for name in ("w1", "w2", "w3"):
        holder = torch.nn.Module()
        holder.weight = torch.nn.Parameter(torch.tensor(CONSTANTS[name]))
        by_hand[name] = prune.l1_unstructured(holder, "weight", 0.5).weight.detach().numpy()
    made = session(network(), level)
    expected = made.run(None, {"x": X})[0]
    with amanda.apply(pruning := MagnitudePruning(0.5)):
        found = [made.run(None, {"x": X})[0] for _ in range(2)]
    for each in found:
        np.testing.assert_array_equal(each, of_edited(by_hand, level))
    np.testing.assert_array_equal(made.run(None, {"x": X})[0], expected)
    assert sum(row.pruned for row in pruning.rows()) == (432 + 512 + 32) // 2
    assert pruning.covered == (976, 976 + 20)  # biases


def test_vectors_lie_along_the_input_channels():
    made = session(network(), "DISABLED")
    with amanda.apply(VectorwisePruning()):
        found = made.run(None, {"x": X})[0]
    best = np.array([[i in pair for i in range(4)] for pair in ((0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3))], float)

    def kept(weight, axis):
        lines = np.moveaxis(weight, axis, -1)
        padded = np.concatenate([lines, np.zeros_like(lines[..., : -lines.shape[-1] % 4])], -1)
        fours = np.abs(padded).reshape(*padded.shape[:-1], -1, 4)
        mask = best[np.stack([(fours * each).sum(-1) for each in best], -1).argmax(-1)]
        mask = mask.reshape(padded.shape)[..., : lines.shape[-1]]
        return np.moveaxis(lines * mask.astype(np.float32), -1, axis)

    edited = {"w1": kept(CONSTANTS["w1"], 1), "w2": kept(CONSTANTS["w2"], 0), "w3": kept(CONSTANTS["w3"], 1)}
    np.testing.assert_array_equal(found, of_edited(edited, "DISABLED"))


@pytest.mark.parametrize("level", LEVELS)
def test_calibration_changes_nothing(level):
    made = session(network(), level)
    expected = made.run(None, {"x": X})[0]
    quantization = FakeQuantization()
    quantization.quantize = False
    with amanda.apply(quantization):
        np.testing.assert_array_equal(made.run(None, {"x": X})[0], expected)
    assert len(quantization.rows()) == 6
    (conv,) = (row for row in quantization.rows() if "Conv" in row.name and row.position == "weight")
    extremes = np.abs(CONSTANTS["w1"]).max((1, 2, 3))
    np.testing.assert_allclose(conv.scale, extremes / 127.5, rtol=1e-6)


def test_a_convolution_in_blocks_is_named_as_left_out():
    made = session(network(), "ALL")
    with amanda.apply(flops := Flops(), pruning := MagnitudePruning(0.5)):
        made.run(None, {"x": X})
    if "com.microsoft.nchwc::Conv" not in flops.uncounted:
        pytest.skip("ONNX Runtime has no convolutions in blocks on this processor")
    assert flops.uncounted_products == {"com.microsoft.nchwc::Conv": 1}
    assert "com.microsoft.nchwc::Conv" in {row.name for row in pruning.unhandled}


def test_a_weight_with_a_fault():
    made = session(network(), "DISABLED")
    with amanda.apply(ErrorInjection(StuckAt(2.0), ops=names_of("conv2d"), at="weight", index=(1, 2, 0, 0))):
        found = made.run(None, {"x": X})[0]
    stuck = CONSTANTS["w1"].copy()
    stuck[1, 2, 0, 0] = 2.0
    np.testing.assert_array_equal(found, of_edited({"w1": stuck}, "DISABLED"))
