"""EffectivePath's messages: operators without a rule, and models, samples and classes that it refuses."""

import re

import amanda
import pytest
import torch
import torch.nn.functional as F
from amanda.research.effective_path import EffectivePath, Path
from torch import nn


@pytest.mark.parametrize("theta", [0, -0.5, 1.1, float("nan"), "half", True, None])
def test_a_theta_that_is_no_share_is_refused(says, theta):
    with says(
        ValueError,
        f"[effective_path] theta is the share of a neuron's value to explain, above 0 and up to 1; got {theta!r}",
    ):
        EffectivePath(theta)


class Refused(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.body, self.function = nn.Linear(4, 4), function

    def forward(self, x):
        return self.function(self.body(x))


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * -2


UNKNOWN = {
    "aten::layer_norm": lambda x: F.layer_norm(x, (4,)),
    "aten::cumsum": lambda x: x.cumsum(1),
    "aten::mul": lambda x: x * x.sigmoid(),
    "aten::matmul": lambda x: (x @ x.T) @ torch.ones(3, 4),
    "autograd::Double": Double.apply,
    "aten::adaptive_avg_pool1d": lambda x: F.adaptive_avg_pool1d(x[:, None], 3)[:, 0],
    "aten::mean": lambda x: x - x.mean(0),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_an_operator_without_a_rule_is_named_with_module_and_line(name):
    with pytest.raises(amanda.Error) as caught:
        EffectivePath().extract(nn.Sequential(Refused(UNKNOWN[name])), torch.rand(3, 4))
    text = str(caught.value)
    assert re.match(
        rf"\[effective_path\] {name} \(0, .*test_effective_path_errors.py:\d+\) is on the path, but which of", text
    )
    assert "Known are adaptive_avg_pool1d, " in text


def test_an_operator_that_only_pytorchs_modules_call_is_named_with_its_module():
    model, tool = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 4)), EffectivePath()
    with pytest.raises(amanda.Error, match=r"^\[effective_path\] aten::layer_norm \(1\) is on the path"):
        tool.extract(model, torch.rand(3, 4))
    tool.extract(model[::2], torch.rand(3, 4))
    assert [(row.module_path, row.source) for row in tool.rows()] == [("0", ""), ("2", "")]


def test_what_is_not_on_the_path_needs_no_rule():
    x = torch.rand(3, 4)
    model = Refused(lambda x: torch.relu(x) + F.layer_norm(x.detach(), (4,)).cumsum(1).mul(0))
    assert len(EffectivePath().extract(model, x)) == 3


@pytest.mark.parametrize(
    ("layer", "what"),
    [
        (
            nn.BatchNorm1d(4),
            "aten::batch_norm (function, LINE) normalizes by statistics of the batch, which mix samples",
        ),
        (nn.Dropout(0.5), "aten::dropout (function, LINE) drops elements at random"),
    ],
)
def test_a_model_that_runs_as_in_training_is_refused(layer, what):
    model = Refused(layer)
    with pytest.raises(amanda.Error) as caught:
        EffectivePath().extract(model, torch.rand(3, 4))
    start, end = what.split("LINE")
    assert str(caught.value).startswith(f"[effective_path] {start}")
    assert str(caught.value).split("\n")[0].endswith(f"{end}; call model.eval() first")
    assert len(EffectivePath().extract(model.eval(), torch.rand(3, 4))) == 3


@pytest.mark.parametrize(
    ("function", "got"),
    [
        (lambda x: x.sum(), "torch.float32 of []"),
        (lambda x: x[:2], "torch.float32 of [2, 4]"),
        (lambda x: (x, x), "tuple"),
        (lambda x: x.argmax(1, keepdim=True), "torch.int64 of [3, 1]"),
    ],
)
def test_results_that_are_no_scores_are_refused(says, function, got):
    with says(
        ValueError,
        "[effective_path] a model returns the scores of classes, (3, classes), or has them in .logits; got "
        f"{got}. Wrap it: extract(lambda x: scores_of(model(x)), x)",
    ):
        EffectivePath().extract(Refused(function), torch.rand(3, 4))


def test_scores_that_have_no_path_are_refused(says):
    tool, x = EffectivePath(), torch.rand(3, 4)
    with says(
        ValueError, "[effective_path] the scores do not depend on x: the model detaches it, or runs under no_grad"
    ):
        tool.extract(lambda x: x.detach() * 2, x)
    weight = torch.rand(3, 4, requires_grad=True)
    with says(
        ValueError, "[effective_path] the scores do not depend on x: the model detaches it, or runs under no_grad"
    ):
        tool.extract(lambda x: weight * 2, x)
    with says(ValueError, "[effective_path] scores are not finite: their paths are not defined"):
        tool.extract(lambda x: x / 0, x)


@pytest.mark.parametrize("x", [torch.ones(2, 3, dtype=torch.int64), torch.tensor(1.0), torch.ones(0, 3), [1.0]])
def test_samples_that_are_none_are_refused(says, x):
    got = f"{x.dtype} of {list(x.shape)}" if isinstance(x, torch.Tensor) else "list"
    text = (
        f"[effective_path] x is a floating-point tensor of samples, (samples, ...); got {got}. Of a model of tokens, "
    )
    with says(TypeError, text + "extract the part that follows its embeddings"):
        EffectivePath().extract(nn.Linear(3, 3), x)


@pytest.mark.parametrize("classes", [4, -1, 1.0, torch.tensor([0, 1]), torch.tensor([0, 1, 9])])
def test_classes_that_do_not_exist_are_refused(says, classes):
    with says(
        ValueError, f"[effective_path] classes= is a number from 0 to 3, or a tensor of 3 of them; got {classes!r}"
    ):
        EffectivePath().extract(nn.Linear(4, 4), torch.rand(3, 4), classes)


def test_a_gradient_that_is_no_mask_is_noticed():
    def unseen(x):
        with amanda.disabled():
            return x / 3

    with pytest.raises(
        amanda.Error, match=r"\[effective_path\] the gradient that arrives at aten::linear \(body, .*is no mask"
    ):
        EffectivePath().extract(Refused(unseen), torch.rand(3, 4))


def test_an_input_that_is_overwritten_is_noticed():
    def function(x):
        y = x + x.flip(1)
        x.mul_(2)
        return y

    with pytest.raises(
        amanda.Error, match=r"the input 'self' of aten::add \(.*\) was overwritten later; make what writes"
    ):
        EffectivePath().extract(Refused(function), torch.rand(3, 4))


def test_samples_that_are_not_first_are_noticed():
    model = Refused(lambda x: F.linear(x.view(-1, 2), torch.ones(2, 2)).view(-1, 4))
    with pytest.raises(
        amanda.Error, match=r"aten::linear .* outputs of \[6, 2\] do not begin with the 3 samples; pass one"
    ):
        EffectivePath().extract(model, torch.rand(3, 4))
    assert len(EffectivePath().extract(model, torch.rand(1, 4))) == 1


def test_paths_that_cannot_be_compared_are_refused(says):
    def path_of(model, *shape):
        return EffectivePath().extract(model, torch.rand(1, *shape))[0]

    conv = nn.Sequential(nn.Conv2d(1, 2, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    one, other = path_of(conv, 1, 4, 4), path_of(conv, 1, 5, 5)
    text = "paths are of samples of different shapes: aten::conv2d in 0 has outputs of [2, 2, 2] and of [2, 3, 3]"
    for use in (one.similarity, one.__or__):
        with says(ValueError, f"[effective_path] the two {text}"):
            use(other)
    with says(ValueError, "[effective_path] the two paths are of different programs: 3 layers are only in one of them"):
        one.similarity(path_of(nn.Linear(2, 2), 2))
    with says(ValueError, '[effective_path] part= is "synapses", "neurons" or "weights", got \'cells\''):
        one.density("cells")
    with says(ValueError, '[effective_path] measure= is "jaccard" or "containment", got \'cosine\''):
        one.similarity(one, measure="cosine")
    with says(ValueError, "[effective_path] layer_weights= has one for each of 2 layers; got [1.0]"):
        one.similarity(one, layer_weights=[1.0])
    with says(ValueError, "[effective_path] a union takes at least one path; got none"):
        Path.union([])
