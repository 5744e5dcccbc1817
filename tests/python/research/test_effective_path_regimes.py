"""EffectivePath leaves models and training alone, and finds the same paths in every regime."""

import copy
import threading

import amanda
import pytest
import torch
import torch.nn.functional as F
from amanda.research.effective_path import EffectivePath
from amanda.tools.statistics import OpStatistics
from neuron_paths import plain
from path_models import made, same_path
from tool_regimes import REGIMES, in_regime
from torch import nn


def test_the_model_and_its_gradients_stay_as_they_are():
    model, x = made("residual")
    model(x).sum().backward()
    calls = []
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(calls.append)
    state, random_state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    gradients = [(parameter.grad, parameter.grad.clone()) for parameter in model.parameters()]
    before, x.grad = x.clone(), None
    EffectivePath().extract(model, x)
    assert all(parameter.grad is own for parameter, (own, _) in zip(model.parameters(), gradients, strict=True))
    assert all(torch.equal(own, old) for own, old in gradients)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random_state)
    assert torch.equal(x, before)
    assert (calls, x.grad, x.requires_grad) == ([], None, False)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_it_works_where_gradients_are_off(mode):
    model, x = made("lenet")
    expected = EffectivePath().extract(model, x)
    with mode():
        for path, own in zip(EffectivePath().extract(model, x.clone()), expected, strict=True):
            same_path(path, own)


def trained(model, x, extract=lambda: None):
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    for step in range(20):
        optimizer.zero_grad()
        F.cross_entropy(model(x).square(), torch.tensor([0, 1, 2])).backward()
        if step % 5 == 0:
            extract()
        optimizer.step()
    return list(model.parameters())


def test_training_in_its_scope_is_as_outside_also_between_extractions():
    (model, x), tool = made("residual", integers=False), EffectivePath()
    other = copy.deepcopy(model)
    expected = trained(other, x)
    with amanda.apply(tool):
        found = trained(model, x, lambda: tool.extract(model, x))
    assert all(map(torch.equal, found, expected))
    same_path(tool.extract(model, x)[0], EffectivePath().extract(other, x)[0])


def test_inside_another_scope_and_on_two_threads():
    (model, x), tool = made("lenet"), EffectivePath()
    expected = EffectivePath().extract(model, x)
    found = []

    def work():
        with amanda.apply(OpStatistics()), amanda.apply(tool):
            found.extend(tool.extract(model, x) for _ in range(3))

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 6
    for paths in found:
        for path, own in zip(paths, expected, strict=True):
            same_path(path, own)
    assert {row.paths for row in tool.rows()} == {18}


def test_a_model_that_extracts_paths_of_another_one():
    (inner, x), tool = made("lenet"), EffectivePath()
    inside = []

    def outer(x):
        inside.extend(tool.extract(inner, x))
        return inner(x)

    for path, other, own in zip(tool.extract(outer, x), inside, tool.extract(inner, x), strict=True):
        assert plain(path) == plain(other) == plain(own)


@pytest.mark.parametrize("regime", REGIMES)
def test_paths_in_every_regime(regime):
    model = Integers().eval()
    x = torch.randint(0, 3, (3, 2, 4, 4), generator=torch.Generator().manual_seed(1)).float()
    expected = EffectivePath().extract(model, x)
    with in_regime(regime, model) as program:
        found = EffectivePath().extract(program, x)
    for path, own in zip(found, expected, strict=True):
        same_path(path, own)
        assert path.inputs.any()


class Integers(nn.Module):
    """Weights of -1, 0 and 1: sums of small integers are exact in bfloat16."""

    def __init__(self):
        super().__init__()
        self.conv, self.fc = nn.Conv2d(2, 2, 3, padding=1), nn.Linear(2 * 4, 3)
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randint(-1, 2, parameter.shape, generator=generator))

    def forward(self, x):
        return self.fc(F.max_pool2d(torch.relu(self.conv(x)) + x, 2).flatten(1))
