"""`amanda diff --against-onnx`: its answer, files and exit statuses."""

import json
import shutil

import pytest
from export_models import labelled_file
from page_tables import tables_of
from repository import ROOT

PROGRAMS = ROOT / "docs" / "programs"
RELU = """
import sys, torch
class Net(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x)
Net()(torch.tensor([1.0, -2.0]))
"""


@pytest.fixture
def diff(tmp_path, run_python):
    for name in ("classify.py", "classify.onnx"):
        shutil.copy(PROGRAMS / name, tmp_path)
    labelled_file(tmp_path / "relu.onnx")
    (tmp_path / "relu.py").write_text(RELU)
    return lambda *arguments: run_python("-m", "amanda", "diff", *arguments)


def test_a_cause_is_printed_and_written(diff, tmp_path):
    done = diff("--against-onnx", "classify.onnx", "--json", "rows.json", "--html", "page.html", "classify.py")
    assert done.returncode == 1, done.stderr
    head = "\n\nthe only cause: Gelu (gelu_1), where the program runs aten::gelu at layers.1, classify.py:14: off by "
    assert head in done.stdout
    (row,) = json.loads((tmp_path / "rows.json").read_text())
    assert (row["name"], row["module_path"], row["op_types"]) == ("aten::gelu", "layers.1", ["Gelu"])
    causes, values = tables_of((tmp_path / "page.html").read_text())[:2]
    assert "layers.1" in str(causes)
    assert "layers.2" in str(values)


def test_a_file_that_agrees_has_status_0(diff):
    done = diff("--against-onnx", "relu.onnx", "relu.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("\nno cause in 1 value that 1 of 1 node compute, in 1 call of Net\n")


def test_a_program_without_the_model_has_status_4(diff, tmp_path):
    (tmp_path / "other.py").write_text("import torch\ntorch.ones(2).relu()\n")
    done = diff("--against-onnx", "relu.onnx", "other.py")
    assert done.returncode == 4, done.stderr
    assert "nothing was compared: the program has called no Net, which is the model that was exported" in done.stdout


def test_a_program_that_fails_has_status_5(diff, tmp_path):
    (tmp_path / "fails.py").write_text(RELU + "raise SystemExit(7)\n")
    done = diff("--against-onnx", "relu.onnx", "fails.py")
    assert done.returncode == 5, done.stdout
    assert "no cause in 1 value" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (["--against-onnx", "relu.py", "relu.py"], "'relu.py' is no ONNX file, or is encrypted"),
        (["--against-onnx", "missing.onnx", "relu.py"], "No such file"),
        (["--against-onnx", "relu.onnx", "--close", "relu.py"], "argument --close: not with --against-onnx"),
        (["--calls", "2", "relu.py", "relu.py"], "argument --calls: it goes with --against-onnx"),
        (["--against-onnx", "relu.onnx"], "script"),
    ],
)
def test_a_mistake_ends_before_the_program_runs(diff, arguments, match):
    done = diff(*arguments)
    assert done.returncode == 2
    assert match in done.stderr
