"""Files by `torch.onnx.export(dynamo=False)`, whose nodes say no more than their modules, are compared by module."""

import functools
import re
import tempfile
from pathlib import Path

import amanda
import numpy as np
import onnx
import onnx_faults
import pytest
import torch
from amanda.tools.export_diff import ExportDiff
from export_models import exported, inputs_of, model_of
from onnx import numpy_helper
from torch import nn


class Unit(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.act = nn.Linear(4, 4), nn.Tanh()

    def forward(self, x):
        return self.act(self.fc(x))


class Nested(nn.Module):
    """Modules whose names are not in the names of nodes as they are in the program, and modules that run twice."""

    def __init__(self):
        super().__init__()
        self.by_name = nn.ModuleDict({"a": Unit(), "b": Unit()})
        self.row = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Tanh(), Unit()))
        self.lists = nn.ModuleList([nn.ModuleList([Unit(), nn.Sequential(Unit(), nn.Tanh())])])
        self.twice, self.fc, self.fc_1 = Unit(), nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        x = self.by_name["a"](x) + self.by_name["b"](x)
        x = self.lists[0][1](self.lists[0][0](self.row(x)))
        x = self.twice(self.twice(x) * 2)
        return self.fc(self.fc_1(self.fc(x)))


class Folded(nn.Module):
    """The exporter folds batch normalizations into the convolutions before them."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
        self.conv, self.norm, self.act = nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8), nn.ReLU()
        self.last, self.drop, self.fc = nn.Conv2d(8, 8, 1), nn.Dropout(), nn.Linear(8, 5)
        for name, drawn in (("mean", torch.randn(8)), ("var", torch.rand(8) + 0.5)):
            self.register_buffer(name, drawn)

    def forward(self, x):
        x = self.stem(x)
        x = self.act(self.norm(self.conv(x)) + x)
        x = nn.functional.batch_norm(self.last(x), self.mean, self.var)  # in no module of its own
        return self.fc(self.drop(x.mean((2, 3))))


INPUTS = {Nested: (2, 4), Folded: (2, 3, 8, 8)}


@functools.cache
def made(name):
    """A model, its arguments, and the bytes of its file."""
    kinds = {kind.__name__: kind for kind in INPUTS}
    if name in kinds:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model, arguments = kinds[name]().eval().requires_grad_(False), (torch.randn(INPUTS[kinds[name]]),)
            for module in model.modules():
                if isinstance(module, nn.BatchNorm2d):
                    module.running_mean.normal_()
                    module.running_var.uniform_(0.5, 1.5)
    else:
        model, arguments = model_of(name), inputs_of(name)
    with tempfile.TemporaryDirectory() as folder:
        return model, arguments, exported(model, arguments, Path(folder, "model.onnx"), dynamo=False).read_bytes()


def compared(name, path, content=None):
    model, arguments, file = made(name)
    path.write_bytes(file if content is None else content)
    diff = ExportDiff(path)
    with amanda.apply(diff), torch.no_grad():
        model(*arguments)
    return diff


@pytest.mark.parametrize("name", ["Nested", "Folded", "ConvNet", "Decoder", "Cached"])
def test_a_faithful_file_has_no_cause_and_all_its_nodes_are_compared(name, tmp_path):
    diff = compared(name, tmp_path / "model.onnx")
    assert not diff.rows(), diff.table()
    assert not diff.not_compared
    assert max(row.error for row in diff.rows("value")) < 2e-6
    nodes = len(onnx.load_from_string(made(name)[2]).graph.node)
    first, second, _ = diff.answer().splitlines()
    assert re.fullmatch(rf"no cause in \d+ values that {nodes} of {nodes} nodes compute, in 1 call of {name}", first)
    assert second.startswith("by module: the nodes say of which modules they were made")


@pytest.mark.parametrize("name", ["Nested", "Folded", "ConvNet", "Decoder", "Cached"])
def test_each_row_of_a_fault_has_its_nodes(name, tmp_path):
    """A fault that changes no value is no fault."""
    model = onnx.shape_inference.infer_shapes(onnx.load_from_string(made(name)[2]))
    planted = list(onnx_faults.faults(model))[:: 9 if name == "Decoder" else 3]
    found = 0
    for fault in planted:
        diff = compared(name, tmp_path / "model.onnx", fault.model.SerializeToString())
        nodes = {node.name for node in fault.model.graph.node if fault.outputs[0] in node.output}
        for row in diff.rows():
            assert nodes & set(row.nodes), (fault.kind, nodes, row)
        found += bool(diff.rows())
        if diff.compared and not diff.rows():
            assert diff.output_error < 1e-5, (fault.kind, nodes)
    assert found >= len(planted) - 1


def test_rows_have_the_operator_that_made_the_result_of_the_module(tmp_path):
    rows = {row.value: row for row in compared("Folded", tmp_path / "model.onnx").rows("value")}
    conv = rows["/stem/stem.0/Conv_output_0"]  # which has the value of the batch normalization
    assert (conv.name, conv.module_path) == ("aten::batch_norm", "stem.1")
    assert conv.source.startswith(__file__)
    last = rows["/last/Conv_output_0"]
    assert (last.name, last.module_path) == ("aten::batch_norm", "")
    assert conv.op_types == ("Conv",)


def test_modules_whose_values_are_not_known_for_sure_are_named(tmp_path):
    diff = compared("Nested", tmp_path / "model.onnx")
    why = {row.module_path: row.why for row in diff.rows("unmatched")}
    assert why == {
        "twice": "its nodes do not say to which of its 2 runs they belong",
        "fc_1": "the names of its nodes are those of two modules",
    }
    # What runs inside them, in nodes of its own, is compared; so is a list in a list.
    matched = {row.value for row in diff.rows("value")}
    assert {"/twice/fc/Gemm_output_0", "/twice/fc_1/Gemm_output_0", "/a/act/Tanh_output_0"} <= matched
    assert {row.module_path for row in diff.rows("value")} >= {"by_name.b.act", "row.1.1.fc", "lists.0.1.0.fc"}


class Scale(nn.Module):
    def forward(self, x):
        return x * 2


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.scale, self.head = nn.Linear(4, 4), Scale(), nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.scale(self.fc(x)))


@pytest.mark.parametrize("is_left", [False, True])
def test_what_is_folded_in_another_way_is_never_a_false_cause(is_left, tmp_path):
    """The product is a part of the linear layer before it; a node of its module is left, or none."""
    model, x = Scaled().eval(), torch.randn(2, 4)
    file = onnx.load(exported(model, (x,), tmp_path / "model.onnx", dynamo=False))
    (mul,) = (node for node in file.graph.node if node.op_type == "Mul")
    fc, head = (node for node in file.graph.node if node.op_type == "Gemm")
    if is_left:
        mul.op_type = "Identity"
        del mul.input[1:]
    else:
        head.input[0] = fc.output[0]
        file.graph.node.remove(mul)
    for each in file.graph.initializer:
        if each.name.startswith("fc."):
            each.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(each) * np.float32(2), each.name))
    onnx.save(file, tmp_path / "model.onnx")
    diff = ExportDiff(tmp_path / "model.onnx")
    with amanda.apply(diff), torch.no_grad():
        model(x)
    assert not diff.rows(), diff.table()
    why = {row.module_path: row.why for row in diff.rows("unmatched")}
    assert why == ({} if is_left else {"fc": "aten::mul at scale reads its result, and has no nodes in the file"})


def test_the_model_is_found_inside_another_one_by_its_modules(tmp_path):
    model, arguments, file = made("Nested")
    (tmp_path / "model.onnx").write_bytes(file)

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.model, self.fc = model, nn.Linear(4, 4)

        def forward(self, x):
            return self.fc(self.model(x))

    diff = ExportDiff(tmp_path / "model.onnx")
    with amanda.apply(diff), torch.no_grad():
        Outer()(*arguments)
    assert (diff.compared, diff.rows()) == (1, [])
    assert {"by_name.b.act"} <= {row.module_path.removeprefix("model.") for row in diff.rows("value")}


def test_a_program_without_the_modules_is_named(tmp_path):
    (tmp_path / "model.onnx").write_bytes(made("Nested")[2])
    diff = ExportDiff(tmp_path / "model.onnx")
    with amanda.apply(diff), torch.no_grad():
        Unit()(torch.ones(2, 4))
    assert diff.answer() == (
        "nothing was compared: the program has called no model that has all the modules in the names of the file's nodes"
    )
    assert not diff.evidence().is_complete


def test_operators_are_joined_by_module(tmp_path):
    rows = compared("Folded", tmp_path / "model.onnx").rows("form")
    stem = rows[0]
    assert (stem.name, stem.program) == ("aten::batch_norm", ("aten::conv2d", "aten::batch_norm"))
    assert stem.written == ("Conv",)
    assert rows[-1].program == ("aten::mean", "aten::dropout", "aten::linear")


def test_a_quantized_file_has_the_places_of_its_export(tmp_path):
    """The error of each row is that of 8 bits; a scale that is 8 times too large is on top."""
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static

    model, (x,), file = made("Perceptron")
    (tmp_path / "model.onnx").write_bytes(file)
    feeds = iter([{onnx.load_from_string(file).graph.input[0].name: x.numpy()}])

    class Reader(CalibrationDataReader):
        def get_next(self):
            return next(feeds, None)

    quantize_static(
        tmp_path / "model.onnx", tmp_path / "quantized.onnx", Reader(), quant_format=QuantFormat.QDQ, per_channel=True
    )

    def diff(path):
        tool = ExportDiff(path, written=tmp_path / "model.onnx")
        with amanda.apply(tool), torch.no_grad():
            model(x)
        return tool

    rows = diff(tmp_path / "quantized.onnx").rows("value")
    assert {"norm", "first", "second"} <= {row.module_path for row in rows}
    assert max(row.error for row in rows) < 0.03
    fault = onnx.load(tmp_path / "quantized.onnx")
    (scale,) = (each for each in fault.graph.initializer if each.name == "/first/Gemm_output_0_scale")
    scale.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(scale) * np.float32(8), scale.name))
    onnx.save(fault, tmp_path / "fault.onnx")
    first = diff(tmp_path / "fault.onnx").rows()[0]
    assert (first.name, first.module_path) == ("aten::linear", "first")
