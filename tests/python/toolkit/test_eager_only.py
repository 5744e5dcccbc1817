"""Tools for operators that PyTorch runs eagerly, at others."""

import types

import amanda
import pytest
from amanda.toolkit import eager_only
from amanda.toolkit.skips import Skips


def at(namespace, is_symbolic, op="tensorflow::MatMul"):
    return types.SimpleNamespace(
        tool=amanda.Tool("prunes"), op=types.SimpleNamespace(name=op), namespace=namespace, is_symbolic=is_symbolic
    )


@pytest.mark.parametrize("regime", ["tensorflow/2.21/function", "tensorflow/2.21/graph", "tensorflow/2.21/eager"])
def test_the_advice_is_of_use_in_the_framework(regime):
    context = at(regime, not regime.endswith("eager"))
    text = r"\[prunes\] Tool can't work on tensorflow::MatMul: it sees lines; it is for PyTorch's operators alone$"
    with pytest.raises(amanda.Error, match=text) as caught:
        eager_only.check(context, "it sees lines")
    assert "compiled=" not in str(caught.value)


def test_a_tool_that_looks_counts_what_it_leaves_out(log):
    skips = Skips("looks")
    left_out = [
        eager_only.leaves_out(context, skips, "it sees lines")
        for context in (
            at("pytorch/2.13/eager", False),
            at("pytorch/2.13/compile", True, "aten::mm"),
            at("pytorch/2.13/compile", True, "aten::relu"),
            at("tensorflow/2.21/eager", False),
        )
    ]
    assert left_out == [False, True, True, True]
    assert skips.caption() == "skipped: 2 compiled, 1 elsewhere"
    assert [line.partition("(")[2] for line in log()] == [
        'aten::mm: it sees lines; compiled="eager" shows it) (said once)',
        "tensorflow::MatMul: it sees lines) (said once)",
    ]
