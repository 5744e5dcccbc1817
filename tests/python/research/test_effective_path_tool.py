"""EffectivePath: its paths against loops over single neurons, written in plain Python."""

import itertools
import re

import pytest
import torch
from amanda.research.effective_path import EffectivePath
from amanda.research.effective_path.synapses import critical
from hypothesis import given, settings
from hypothesis import strategies as st
from neuron_paths import plain, trace
from path_models import THETAS, each_model, made, same_path
from torch import nn

# ---- paths -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("integers", [True, False], ids=["integers", "floats"])
@pytest.mark.parametrize("theta", THETAS)
@each_model
def test_paths_are_those_of_loops_over_single_neurons(name, theta, integers):
    model, x = made(name, integers=integers, samples=2)
    with torch.no_grad():
        scores = model(x)
    for path, one, own in zip(EffectivePath(theta).extract(model, x), x, scores, strict=True):
        tensors = model.cells(one)
        assert [tensors[-1].values[k,] for k in range(3)] == pytest.approx(own.tolist())
        expected = trace(tensors, theta, int(own.argmax()))
        assert plain(path) == expected
        assert expected[0][-1][1]


@each_model
def test_paths_of_given_classes(name):
    model, x = made(name)
    tool = EffectivePath()
    for classes in (0, 2, torch.tensor([2, 0, 1])):
        each = [classes] * 3 if isinstance(classes, int) else classes.tolist()
        for path, one, chosen in zip(tool.extract(model, x, classes), x, each, strict=True):
            assert plain(path) == trace(model.cells(one), 0.5, chosen)


def test_a_batch_has_the_paths_of_its_samples():
    model, x = made("residual", samples=4)
    tool = EffectivePath()
    for path, one in zip(tool.extract(model, x), x, strict=True):
        (alone,) = tool.extract(model, one[None])
        same_path(path, alone)
        assert path.inputs.shape == one.shape


def test_what_is_ranked_in_parts_is_the_same(monkeypatch):
    model, x = made("lenet")
    whole = EffectivePath().extract(model, x)
    monkeypatch.setattr("amanda.research.effective_path.extraction.CHUNK", 50)
    for path, expected in zip(EffectivePath().extract(model, x), whole, strict=True):
        same_path(path, expected)


# ---- the rule --------------------------------------------------------------------------------------------------------


@settings(deadline=None)  # a machine may be busy
@given(st.lists(st.integers(-9, 9), min_size=1, max_size=8), st.sampled_from(THETAS))
def test_critical_contributions_are_a_smallest_set(contributions, theta):
    (mask,) = critical(torch.tensor([contributions]).double(), theta).tolist()
    taken = [value for value, chosen in zip(contributions, mask, strict=True) if chosen]
    total, positive = sum(contributions), [value for value in contributions if value > 0]
    goal = theta * (total if total > 0 else sum(positive))
    sets = (found for n in range(len(positive) + 1) for found in itertools.combinations(positive, n))
    fewest = next(len(found) for found in sets if sum(found) >= goal)
    assert len(taken) == fewest
    assert sum(taken) >= goal
    assert min(taken, default=1) > 0


def positive_network():
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 5), nn.ReLU(), nn.Linear(5, 2))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.rand(parameter.shape, generator=torch.Generator().manual_seed(0)) - 0.1).relu_()
    return model


def test_theta_1_takes_all_that_contributes_if_all_is_positive():
    model = positive_network()
    x = torch.rand(1, 1, 6, 6, generator=torch.Generator().manual_seed(0)).round(decimals=1)
    (path,) = EffectivePath(theta=1).extract(model, x)
    score = model(x.requires_grad_())
    (gradient,) = torch.autograd.grad(score[0, score.argmax()], x)
    assert torch.equal(path.inputs, (gradient * x > 0)[0])
    assert path.density("neurons") > 0.4


def test_a_greater_theta_only_adds():
    model, x = made("lenet", integers=False)
    found = [EffectivePath(theta).extract(model, x) for theta in (0.01, 0.2, 0.5, 0.8, 1.0)]
    for smaller, greater in itertools.pairwise(found):
        for one, other in zip(smaller, greater, strict=True):
            same_path(one | other, other)
    assert sum(path.density() for path in found[-1]) > 2 * sum(path.density() for path in found[0]) > 0


# ---- the example -----------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_the_example_tells_adversarial_images_from_others(run_example):
    printed = run_example("detect_adversarial.py")
    assert float(re.search(r"^accuracy (.*)%$", printed, re.MULTILINE)[1]) > 93
    rows = [
        list(map(float, row.replace("%", "").split())) for row in re.findall(r"^ +0\.\d .*$", printed, re.MULTILINE)
    ]
    assert [row[0] for row in rows] == [0.1, 0.3]
    for _, fooled, clean, adversarial, jaccard, containment, linear in rows:
        assert fooled > 25
        assert clean > adversarial
        assert 0.5 < jaccard < containment
        assert min(containment, linear) > 0.7
