"""The operators of a program are joined with the nodes of its ONNX file, and with those that ONNX Runtime makes of them."""

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import amanda
import onnxruntime
import pytest
import torch
from amanda.tools.export_diff import ExportDiff
from export_models import exported
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
        self.head = nn.Linear(16, 5)

    def forward(self, x):
        h = torch.relu(self.norm(self.conv(x)))
        return self.head(torch.relu(h).flatten(1))


X = torch.randn(2, 3, 4, 4)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return exported(net(), (X,), tmp_path_factory.mktemp("file") / "net.onnx")


def net():
    torch.manual_seed(0)
    return Net().eval()


@pytest.fixture(scope="module")
def joined(file):
    diff = ExportDiff(file)
    with amanda.apply(diff), torch.no_grad():
        net()(X)
    return diff


def test_each_operator_has_its_nodes_in_the_order_of_the_file(joined):
    rows = {(row.name, row.module_path): row for row in joined.rows("form")}
    assert [*rows] == [
        *(("aten::batch_norm", "norm"), ("aten::relu", ""), ("aten::flatten", ""), ("aten::linear", "head"))
    ]
    norm, linear = rows["aten::batch_norm", "norm"], rows["aten::linear", "head"]
    assert (norm.written, norm.optimized) == (("Conv",), ("com.microsoft::FusedConv",))
    assert norm.fused_with == ("aten::relu",)
    assert (linear.written, linear.optimized, linear.fused_with) == (("Gemm",), ("Gemm",), ())
    assert linear.source.startswith(__file__)


def test_operators_that_the_exporter_folded_are_named(joined):
    # The convolution is a part of the node of the batch normalization.
    assert joined.without_value["aten::conv2d"] == 1


def test_the_optimized_nodes_are_those_of_a_session(joined, file, tmp_path):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    session = onnxruntime.InferenceSession(str(file), options)
    seen = []

    class Look(amanda.Tool):
        def __init__(self):
            super().__init__()
            self.add_inst_for_op(lambda context: seen.append((context.namespace, context.op.name)))

    with amanda.apply(Look()):
        session.run(None, {session.get_inputs()[0].name: X.numpy()})
    listed = [type for row in joined.rows("form") for type in row.optimized]
    assert set(listed) == {name.removeprefix("onnx::") for space, name in seen if space.startswith("onnxruntime/")}


def test_the_command(file, tmp_path):
    script = tmp_path / "infer.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import sys
            import torch
            sys.path.insert(0, {str(tmp_path)!r})
            from net import Net

            torch.manual_seed(0)
            with torch.no_grad():
                Net().eval()(torch.randn(2, 3, 4, 4))
            """
        )
    )
    source = Path(__file__).read_text()
    (tmp_path / "net.py").write_text(
        "import torch\nfrom torch import nn\n\n\n" + source[source.index("class Net") : source.index("X = torch")]
    )

    def amanda_ls(*options):
        command = [sys.executable, "-m", "amanda", "ls", *options, str(script)]
        return subprocess.run(command, capture_output=True, text=True)

    ran = amanda_ls("--against-onnx", str(file))
    assert ran.returncode == 0, ran.stderr
    lines = ran.stdout.strip().splitlines()
    assert lines[0].startswith(
        "4 operators of the program became 4 nodes of the file; ONNX Runtime fuses 2 of them with"
    )
    assert lines[1].startswith("operators of the program whose results are no values of the file: ")
    assert "aten::conv2d 1" in lines[1]
    (linear,) = (line for line in lines if "aten::linear" in line)
    assert linear.split()[-2:] == ["Gemm", "Gemm"]
    ran = amanda_ls("--against-onnx", str(file), "--json", str(tmp_path / "rows.json"))
    assert [row["written"] for row in json.loads((tmp_path / "rows.json").read_text())][-1] == ["Gemm"]
    ran = amanda_ls("--against-onnx", str(file), "--ops", "linear")
    assert ran.returncode == 2
    assert "argument --ops: not with --against-onnx" in ran.stderr
    ran = amanda_ls("--against-onnx", str(tmp_path / "none.onnx"))
    assert ran.returncode == 2
    assert "none.onnx" in ran.stderr
