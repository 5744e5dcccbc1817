"""Commands on a `.pt2` file of torch.export: the rows of its model, its inputs, and mistakes."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
from amanda.cli.program import Program

NET = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Linear(4, 4), nn.LayerNorm(4)

    def forward(self, x):
        return self.norm(torch.log(self.first(x).exp()))

torch.manual_seed(0)
net = Net().eval()
"""
EXPORT = """
import torch
from net import net
exported = torch.export.export(net, (torch.ones(2, 4),), dynamic_shapes=({0: torch.export.Dim("batch")},))
torch.export.save(exported, "net.pt2")
exported._example_inputs = None
torch.export.save(exported, "bare.pt2")
"""
CALL = """
import torch
from net import net
with torch.no_grad():
    net(torch.ones(2, 4))
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with net.py, and the files that were made from it; bare.pt2 has no inputs."""
    folder = tmp_path_factory.mktemp("exported")
    for name, text in {"net.py": NET, "export.py": EXPORT, "call.py": CALL}.items():
        (folder / name).write_text(text)
    subprocess.run([sys.executable, "export.py"], cwd=folder, check=True)
    return folder


@pytest.fixture
def folder(made, tmp_path, monkeypatch):
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def command(folder, run_python):
    return lambda *arguments: run_python("-m", "amanda", *arguments)


def test_its_rows_are_those_of_the_source(command):
    of_file, of_source = command("ls", "net.pt2"), command("ls", "call.py")
    assert of_file.returncode == of_source.returncode == 0, of_file.stderr
    rows = [
        [
            re.sub(r"\S*net\.py", "net.py", line).split()[1:4]
            for line in done.stdout.splitlines()
            if re.search(r"aten::.*net\.py:11", line)
        ]
        for done in (of_file, of_source)
    ]
    assert rows[0] == rows[1]
    assert [row[:2] for row in rows[0]] == [
        ["aten::linear", "first"],
        ["aten::exp", "net.py:11"],
        ["aten::log", "net.py:11"],
        ["aten::layer_norm", "norm"],
    ]


def test_a_nan_has_its_line(command, folder):
    np.savez("x.npz", np.full((3, 4), -1e3, np.float32))
    done = command("nan", "net.pt2", "--inputs", "x.npz")
    assert done.returncode == 1, done.stderr
    assert re.search(r"net\.py:11", done.stdout + done.stderr)


def test_a_profile_of_some_runs(command):
    done = command("profile", "net.pt2", "--runs", "5")
    assert done.returncode == 0, done.stderr
    assert "net.py:11" in done.stdout


def test_a_difference_from_the_program_is_named(command, folder):
    (folder / "net.py").write_text(NET.replace("nn.LayerNorm(4)", "nn.LayerNorm(4, eps=0.1)"))
    other = command("diff", "call.py", "net.pt2")
    assert other.returncode == 1, other.stderr
    assert re.search(r"eps: 0\.1 -> 1e-05, .*in aten::layer_norm at norm \(1 operator\)", other.stdout)


# ---- inputs -----------------------------------------------------------------------------------------------------------


def shapes(*arguments):
    """The shapes of what the model is called on."""
    shown = []
    program = Program.of_exported(list(arguments))
    model = program.run.__self__._model
    handle = model.register_forward_pre_hook(lambda _, args: shown.append([tuple(arg.shape) for arg in args]))
    program.run()
    handle.remove()
    return shown


def test_inputs_are_the_example_or_named_or_by_position(folder):
    x = np.ones((5, 4), np.float32)
    np.savez("position.npz", x)
    np.savez("name.npz", x=x)
    np.savez("none.npz")
    assert shapes("net.pt2") == [[(2, 4)]]
    assert shapes("net.pt2", "--runs", "2", "--inputs", "none.npz") == [[(2, 4)]] * 2
    for file in ("position.npz", "name.npz"):
        assert shapes("bare.pt2", "--inputs", file) == [[(5, 4)]]


def test_nested_inputs_are_named_as_in_the_graph(folder):
    class Sum(torch.nn.Module):
        def forward(self, pair, *, scale, power=2):
            return (pair["a"] + pair["b"]) ** power * scale

    pair = {"a": torch.ones(2), "b": torch.ones(2)}
    exported = torch.export.export(Sum(), (pair,), {"scale": torch.ones(2), "power": 3})
    torch.export.save(exported, "sum.pt2")
    names = [spec.arg.name for spec in exported.graph_signature.input_specs]
    np.savez("b.npz", **{names[1]: np.full(2, 5, np.float32)})
    program = Program.of_exported(["sum.pt2", "--inputs", "b.npz"]).run.__self__
    assert program._args[0]["b"].tolist() == [5, 5]
    assert program._args[0]["a"].tolist() == [1, 1]
    assert program._kwargs["power"] == 3
    np.savez("power.npz", **{names[3]: np.array(2)})
    with pytest.raises(ValueError, match=f"argument --inputs: '{names[3]}' is no tensor: the model was exported for"):
        Program.of_exported(["sum.pt2", "--inputs", "power.npz"])


# ---- mistakes ---------------------------------------------------------------------------------------------------------

MISTAKES = [
    (["text.pt2"], "'text.pt2' is no file of torch.export.save: it is no zip file"),
    (["other.pt2"], "torch.export.load can't load 'other.pt2': "),
    (["bare.pt2"], "'bare.pt2' has no example inputs: give it --inputs FILE.npz with 'x'"),
    (["net.pt2", "--inputs"], "argument --inputs: expected one argument; what follows a .pt2 file is --inputs"),
    (["net.pt2", "more"], "unrecognized arguments: more; what follows a .pt2 file is --inputs FILE.npz or --runs N"),
    (["net.pt2", "--runs", "0"], "argument --runs: expected a positive number, got 0"),
    (["net.pt2", "--inputs", "no.npz"], "argument --inputs: can't open 'no.npz': No such file or directory"),
    (["net.pt2", "--inputs", "text.pt2"], "argument --inputs: 'text.pt2' is no .npz file of numpy.savez: "),
    (["net.pt2", "--inputs", "one.npy"], "argument --inputs: 'one.npy' is no .npz file of numpy.savez: "),
    (["net.pt2", "--inputs", "y.npz"], "argument --inputs: the model has no input 'y'; it has 1: 'x'"),
    (["net.pt2", "--inputs", "two.npz"], "argument --inputs: the model has no input 'arr_1'; it has 1: 'x'"),
    (["bare.pt2", "--inputs", "none.npz"], "argument --inputs: there is no array 'x'; the model takes 'x'"),
    (
        ["net.pt2", "--inputs", "double.npz"],
        "argument --inputs: 'x' is float64, and the model was exported for float32",
    ),
]


@pytest.mark.parametrize(("arguments", "message"), MISTAKES)
def test_mistakes_are_told_before_anything_runs(folder, arguments, message):
    (folder / "text.pt2").write_text("text")
    torch.save({"a": 1}, "other.pt2")
    x = np.ones((2, 4), np.float32)
    np.save("one.npy", x)
    np.savez("y.npz", y=x)
    np.savez("two.npz", x, x)
    np.savez("none.npz")
    np.savez("double.npz", x.astype(np.float64))
    with pytest.raises(ValueError, match=re.escape(message)):
        Program.of_exported(arguments)


def test_a_mistake_is_one_line(command):
    missing = command("ls", "missing.pt2")
    assert missing.returncode == 2
    assert missing.stderr == "amanda ls: error: can't open 'missing.pt2': No such file or directory\n"
    more = command("ls", "net.pt2", "more")
    assert (more.returncode, more.stdout, len(more.stderr.splitlines())) == (2, "", 1), more.stderr


@pytest.mark.slow  # inductor compiles
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_package_of_compiled_code_has_no_operators(folder):
    exported = torch.export.load("net.pt2")
    torch._inductor.aoti_compile_and_package(exported, package_path=str(folder / "compiled.pt2"))
    message = "'compiled.pt2' is a package of AOTInductor: compiled code, in which there are no operators to look at"
    with pytest.raises(ValueError, match=re.escape(message)):
        Program.of_exported(["compiled.pt2"])
