"""Commands on an ONNX file: the rows of its model, its inputs, and mistakes."""

import re
import subprocess
import sys

import numpy as np
import onnx
import pytest
from amanda.cli.program import Program
from sessions import NODES, WEIGHT, X, model


@pytest.fixture
def folder(tmp_path, monkeypatch):
    onnx.save(model(), tmp_path / "m.onnx")
    np.savez(tmp_path / "x.npz", x=X)
    np.savez(tmp_path / "in_order.npz", X)
    np.savez(tmp_path / "double.npz", x=X.astype(np.float64))
    np.savez(tmp_path / "other.npz", y=X)
    np.savez(tmp_path / "nan.npz", x=np.where(X[1, 2] == X, np.nan, X).astype(np.float32))
    onnx.save(
        model(NODES[:2], inputs={}, outputs=["a"], constants={"x": X, "W": WEIGHT, "b": X[0]}), tmp_path / "const.onnx"
    )
    (tmp_path / "text.onnx").write_text("no model")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def command(*arguments):
    return subprocess.run([sys.executable, "-m", "amanda", *arguments], capture_output=True, text=True, check=False)


def test_its_rows_have_the_modules_of_nodes(folder):
    ran = command("ls", "m.onnx", "--inputs", "x.npz", "--runs", "3")
    assert ran.returncode == 0, ran.stderr
    rows = {tuple(line.split()[:3]) for line in ran.stdout.splitlines() if "::" in line and "float32" in line}
    assert {("3", "onnx::Relu", "act"), ("3", "onnx::Concat", "cat")} <= rows


def test_a_nan_is_that_of_the_input(folder):
    ran = command("nan", "m.onnx", "--inputs", "nan.npz")
    assert ran.returncode != 0
    assert "the first NaN was in an input that no operator seen here produced" in ran.stdout + ran.stderr
    assert "1 of 24 NaN" in ran.stdout + ran.stderr


@pytest.mark.parametrize("line", ["m.onnx --inputs x.npz", "m.onnx --inputs in_order.npz", "const.onnx"])
def test_inputs_are_named_or_in_order_or_none(folder, line):
    Program.of_onnx(line.split()).run()


MISTAKES = [
    (["m.onnx"], "'m.onnx' has no example inputs: give it --inputs FILE.npz with 'x'"),
    (["m.onnx", "--inputs", "none.npz"], "argument --inputs: can't open 'none.npz': No such file or directory"),
    (
        ["m.onnx", "--inputs", "double.npz"],
        "argument --inputs: 'x' is tensor(double), and the model takes tensor(float)",
    ),
    (["m.onnx", "--inputs", "other.npz"], "argument --inputs: the model has no input 'y'; it has 1: 'x'"),
    (["m.onnx", "--runs", "0"], "argument --runs: expected a positive number, got 0"),
    (["m.onnx", "more"], "unrecognized arguments: more; what follows a .onnx file is --inputs FILE.npz or --runs N"),
    (["text.onnx"], "ONNX Runtime can't load 'text.onnx': "),
]


@pytest.mark.parametrize(("arguments", "message"), MISTAKES)
def test_mistakes_are_told_before_anything_runs(folder, arguments, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        Program.of_onnx(arguments)


def test_a_file_that_is_not_there_is_one_line(folder):
    ran = command("profile", "none.onnx")
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr == "amanda profile: error: can't open 'none.onnx': No such file or directory\n"
