"""The warning about single names of `ops=` and `modules=`: one that nothing met, in a list of which others were met."""

import contextlib
import warnings

import amanda
import pytest
import torch
import torch.nn.functional as F
from amanda.core.near_names import near

X = torch.tensor([-1.0, 2.0])
MODEL = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Linear(2, 2)))
OTHERS = "; of the same list, 'linear' did"
OPTIONAL = "; if a program may be without it, register the routine with optional=True"
SOFTMAX = "; attention may be scaled_dot_product_attention, which has its softmax inside"


@contextlib.contextmanager
def warns(*texts):
    """The body warns of unmatched filters in exactly these words."""
    with warnings.catch_warnings(record=True) as recorded:
        warnings.simplefilter("always")
        yield
    assert [str(one.message) for one in recorded] == list(texts)
    assert all(one.category is amanda.UnmatchedFilterWarning for one in recorded)


def asking(name="prune", **asked):
    tool = amanda.Tool(name)
    tool.add_inst_for_op(lambda context: None, **asked)
    return tool


def test_one_dead_operator_of_several():
    text = f"[scope] ops='softmax' of tool 'prune' matched nothing that ran{OTHERS}{SOFTMAX}{OPTIONAL}"
    with warns(text), amanda.apply(asking(ops=["linear", "softmax"])):
        MODEL(X)


def test_dead_operators_are_one_warning_for_a_routine():
    text = f"[scope] ops=['aten::cos', 'exp'] of tool 'prune' matched nothing that ran{OTHERS}{OPTIONAL}"
    with warns(text), amanda.apply(asking(ops=["linear", "aten::cos", "exp"])):
        MODEL(X)


def test_one_dead_module_of_several():
    text = (
        "[scope] modules='decoder.*' of tool 'prune' matched nothing: the routine saw operators in '0' only" + OPTIONAL
    )
    with warns(text), amanda.apply(asking(ops="linear", modules=["0", "decoder.*"])):
        MODEL(X)


def test_a_misspelt_module_next_to_one_that_is_met():
    layers = torch.nn.ModuleDict({"encoder": torch.nn.Linear(2, 2), "head": torch.nn.Linear(2, 2)})
    model = torch.nn.Module()
    model.layers = layers
    model.forward = lambda x: layers["head"](layers["encoder"](x))
    text = (
        "[scope] modules='layers.encodr' of tool 'prune' matched nothing: the routine saw operators in 'layers.encoder', "
        "'layers.head' only; near it: 'layers.encoder', 'layers.head'" + OPTIONAL
    )
    with warns(text), amanda.apply(asking(modules=["layers.*", "layers.encodr"])):
        model(X)


def test_a_dead_operator_inside_the_modules_that_are_asked_for():
    text = f"[scope] ops='exp' of tool 'prune' matched nothing in modules='0'; of the same list, 'linear' did{OPTIONAL}"
    with warns(text), amanda.apply(asking(ops=["linear", "exp"], modules="0")):
        MODEL(X)


def test_names_of_narrow():
    tool = asking()
    tool.narrow(ops=["linear", "softmax"], modules=["0", "head"])
    with (
        warns(
            f"[scope] ops='softmax' of tool 'prune' matched nothing in modules=['0', 'head']{OTHERS}{SOFTMAX}",
            "[scope] modules='head' of tool 'prune' matched nothing: the routine saw operators in '0' only",
        ),
        amanda.apply(tool),
    ):
        MODEL(X)


def test_it_is_given_once():
    tool = asking(ops=["linear", "exp"])
    with warnings.catch_warnings(record=True) as recorded:
        warnings.simplefilter("always")
        for _ in range(3):
            with amanda.apply(tool):
                MODEL(X)
    assert len(recorded) == 1


def test_backward_operators():
    x = X.clone().requires_grad_()
    text = f"[scope] ops='exp' of tool 'prune' matched nothing that ran; of the same list, 'relu' did{OPTIONAL}"
    with warns(text), amanda.apply(asking(ops=["relu", "exp"], backward=True)):
        torch.relu(x).sum().backward()


def test_names_that_narrow_excludes():
    tool = asking(ops=["linear", "exp"], modules=["0", "head"])
    tool.narrow(ops="linear")
    with warns(), amanda.apply(tool):
        MODEL(X)
    tool = asking()
    tool.narrow(ops=["linear", "exp"])
    tool.narrow(ops=["linear", "relu"])
    with warns(), amanda.apply(tool):
        MODEL(X)


# ---- its neighbours, which are right -----------------------------------------------------------------------------------

SILENT = {
    "all are met": {"ops": ["linear", "relu"]},
    "a group of names": {"ops": amanda.ops.linear_like},
    "groups of names": {"ops": amanda.ops.linear_like + amanda.ops.convolution + amanda.ops.normalization},
    "layers with weights": {"ops": ["conv2d", "linear", "conv_transpose2d"]},
    "activations": {"ops": ["relu", "gelu", "silu"]},
    "an operator and itself in place": {"ops": ["relu", "relu_"]},
    "one kind in several dimensions, and another that is met": {"ops": ["linear", "conv1d", "conv2d"]},
    "globs": {"ops": ["linear", "conv*", "*norm*"]},
    "the same name twice": {"ops": ["linear", "linear"]},
    "overloads and namespaces of what is met": {"ops": ["linear", "aten::linear", "aten::relu"]},
    "modules that are met": {"modules": ["0", "1.*"]},
    "a module and one inside it": {"modules": ["1", "1.1"]},
    "optional": {"ops": ["linear", "exp"], "optional": True},
}


@pytest.mark.parametrize("which", SILENT)
def test_silent(which):
    with warns(), amanda.apply(asking(**SILENT[which])):
        MODEL(X)


def test_attention_by_other_names():
    q = torch.randn(1, 1, 2, 4)
    with warns(), amanda.apply(asking(ops=["softmax", "scaled_dot_product_attention"])):
        F.scaled_dot_product_attention(q, q, q)


def test_what_ran_before_in_the_same_scope():
    scope = amanda.apply(asking(ops=["linear", "exp"]))
    with warns(), scope:
        MODEL(X)
        torch.exp(X)
    with warns(), scope:
        MODEL(X)


def test_what_another_scope_of_the_tool_will_show():
    tool = asking(ops=["linear", "exp"])
    with warns(), amanda.apply(tool):
        with amanda.apply(tool):
            MODEL(X)
        torch.exp(X)


def test_a_scope_that_an_exception_leaves():
    with warns(), pytest.raises(IndexError), amanda.apply(asking(ops=["linear", "exp"])):
        MODEL(X)[9]


def test_a_tool_that_was_stopped(log):
    tool = asking(ops=["linear", "exp"])
    tool.add_inst_for_op(lambda context: 1 / 0, ops="relu")
    with warns(), amanda.apply(tool, on_error="disable"):
        MODEL(X)
    assert len(log()) == 1


# ---- names that are similar --------------------------------------------------------------------------------------------


def test_similar_names_are_sorted_and_the_case_does_not_count():
    assert near("Linear", ["linear", "bilinear"]) == ["linear"]
    assert near("profil", ["profile", "nan"]) == ["profile"]
    assert near("quux", ["profile", "nan"]) == []
