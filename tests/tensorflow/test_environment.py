"""The environment of these tests has TensorFlow, and no PyTorch."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import amanda
import tensorflow as tf
from amanda.cli.main import COMMANDS


def test_the_version_is_the_one_that_the_driver_is_for():
    assert tf.__version__.startswith("2.21.")


def test_there_is_no_torch():
    assert importlib.util.find_spec("torch") is None


def test_amanda_works_without_torch(fresh_python):
    assert fresh_python("import amanda; print(amanda.__version__)") == amanda.__version__


def test_importing_amanda_does_not_import_tensorflow(fresh_python):
    assert fresh_python("import sys, amanda; print('tensorflow' in sys.modules)") == "False"


def test_every_command_is_found_without_torch():
    for listed in COMMANDS:
        listed.load()


def test_a_tool_for_pytorch_says_so_and_what_works(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import tensorflow\n")
    command = [sys.executable, "-m", "amanda", "run", "-t", "activation_pruning", script]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert ran.returncode == 2
    assert ran.stderr == (
        f"amanda run: error: it looks at programs of PyTorch, which is not installed for {sys.executable}; with "
        "TensorFlow and ONNX Runtime, use ls, profile, flops, nan, diff, trace, watch or run\n"
    )
