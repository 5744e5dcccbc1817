"""The environment of these tests has TensorFlow, and no PyTorch."""

from __future__ import annotations

import importlib.util

import amanda
import tensorflow as tf


def test_the_version_is_the_one_that_the_driver_is_for():
    assert tf.__version__.startswith("2.21.")


def test_there_is_no_torch():
    assert importlib.util.find_spec("torch") is None


def test_amanda_works_without_torch(fresh_python):
    assert fresh_python("import amanda; print(amanda.__version__)") == amanda.__version__


def test_importing_amanda_does_not_import_tensorflow(fresh_python):
    assert fresh_python("import sys, amanda; print('tensorflow' in sys.modules)") == "False"
