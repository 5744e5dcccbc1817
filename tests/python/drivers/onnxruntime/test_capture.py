"""Capture and Patch on sessions: results in memory and in files, and those of another framework."""

import amanda
import numpy as np
import pytest
import torch
from amanda.tools.capture import Capture, Patch, load
from sessions import BIAS, WEIGHT, X, session

SUM = X @ WEIGHT + BIAS


def run(made):
    return made.run(None, {"x": X})[0]


def test_results_in_files_are_those_in_memory(tmp_path):
    made = session(level="DISABLED")
    kept, written = Capture(runs="all"), Capture(runs="all", folder=tmp_path / "results")
    expected = run(made)
    with amanda.apply(kept, written):
        for _ in range(2):
            np.testing.assert_array_equal(run(made), expected)
    read = load(tmp_path / "results")
    assert [*read] == [*kept] == ["fc:MatMul", "fc:Add", "act:Relu", "cat:Concat"]
    for name in kept:
        for number, each in kept.runs(name).items():
            assert isinstance(read.runs(name)[number], np.ndarray)
            np.testing.assert_array_equal(read.runs(name)[number], each)
    np.testing.assert_allclose(kept["fc:Add"], SUM, rtol=1e-5, atol=1e-6)
    assert {row.kept for row in kept.rows()} == {"cpu"}


def test_another_dtype():
    with amanda.apply(capture := Capture("Relu", dtype=np.float16)):
        run(session(level="DISABLED"))
    assert capture["act:Relu"].dtype == np.float16


def test_results_of_pytorch_are_put_into_a_session():
    layer = torch.nn.Linear(8, 8)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor(WEIGHT.T * 2))
        layer.bias.copy_(torch.tensor(BIAS))
        with amanda.apply(captured := Capture("linear")):
            layer(torch.tensor(X))
    (value,) = captured.values()
    made = session(level="DISABLED")
    with amanda.apply(Patch({"fc:Add": value})):
        found = run(made)
    doubled = X @ (2 * WEIGHT) + BIAS
    np.testing.assert_allclose(found, np.concatenate([np.maximum(doubled, 0), doubled], 1), rtol=1e-5, atol=1e-6)


def test_results_of_a_session_are_put_into_pytorch():
    with amanda.apply(captured := Capture("Add")):
        run(session(level="DISABLED"))
    layer = torch.nn.Linear(8, 8)
    with torch.no_grad(), amanda.apply(Patch({":linear": captured["fc"]})):
        found = layer(torch.tensor(X))
    np.testing.assert_array_equal(found.numpy(), captured["fc:Add"])


def test_a_value_of_another_shape_is_an_error(says):
    made = session(level="DISABLED")
    text = "[patch] a value of shape [2, 2] can't take the place of the result of 'fc:Add', [3, 8]"
    with says(ValueError, text), amanda.apply(Patch({"fc:Add": np.zeros((2, 2))})):
        run(made)


def test_a_dtype_that_numpy_has_not_leaves_the_program_alone():
    made = session(level="DISABLED")
    expected = run(made)
    with amanda.apply(capture := Capture("Relu", dtype=torch.bfloat16)):
        np.testing.assert_array_equal(run(made), expected)
    assert capture.skipped == {"failed": 1}
    assert not list(capture)


@pytest.mark.parametrize("level", ["DISABLED", "ALL"])
def test_an_ablated_result(level):
    made = session(level=level)
    expected = run(made)
    with amanda.apply(Patch({"*:Relu": 0.0})):
        found = run(made)
    assert not found[:, :8].any()
    np.testing.assert_array_equal(found[:, 8:], expected[:, 8:])
