"""Under tools that look, or replace every backward operator by itself, training is bit for bit the same."""

import contextlib

import amanda

# ruff: noqa: C408 -- configurations read better so
import pytest
import torch
import torch.nn.functional as F
from backward_tools import ReplaceAll, Watcher, graph_names, same
from torch.utils._pytree import tree_leaves
from zoo import bert, pixels

nn = torch.nn


def cnn():
    layers = [
        nn.Conv2d(3, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(900, 4),
    ]
    return nn.Sequential(*layers), dict(input=pixels())  # fmt: skip


def mlp():
    """With weight norm, as a parametrization."""
    layers = [nn.utils.parametrizations.weight_norm(nn.Linear(4, 8)), nn.GELU(), nn.Dropout(0.5), nn.Linear(8, 2)]
    return nn.Sequential(*layers), dict(input=torch.randn(3, 4))


def lstm():
    return nn.LSTM(4, 8, num_layers=2, bidirectional=True, dropout=0.1), dict(input=torch.randn(5, 2, 4))


MODELS = [cnn, mlp, lstm, bert]  # models/test_zoo.py has many more, with forward and backward operators in one tool


def loss_of(model, inputs):
    out = model(**inputs)
    if getattr(out, "loss", None) is not None:
        return out.loss
    values = out.to_tuple() if hasattr(out, "to_tuple") else out
    return sum(leaf.square().mean() for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor))


def seeded(make):
    torch.manual_seed(0)
    model, inputs = make()
    return model.train(), inputs


def train(make, optimizer, tools=(), steps=2):
    """Parameters after two steps, and the random state."""
    model, inputs = seeded(make)
    stepper = optimizer(model.parameters())

    def closure():
        stepper.zero_grad()
        loss = loss_of(model, inputs)
        loss.backward()
        return loss

    with amanda.apply(*tools) if tools else contextlib.nullcontext():
        for _ in range(steps):
            stepper.step(closure)
    return [*(p.detach() for p in model.parameters()), *model.buffers(), torch.get_rng_state()]


@pytest.mark.parametrize("make", MODELS)
def test_every_node_of_the_graph_is_seen_once(make):
    model, inputs = seeded(make)
    tool = Watcher()
    with amanda.apply(tool):
        for _ in range(2):
            tool.trace.clear()
            loss = loss_of(model, inputs)
            expected = graph_names(loss)
            loss.backward()
            assert sum(expected.values()) > 10
            assert tool.count() == tool.count("<") == expected


@pytest.mark.parametrize("make", MODELS)
def test_training_is_bit_equal(make):
    """SGD with momentum under watchers, AdamW under a tool that replaces each backward operator by itself."""

    def sgd(parameters):
        return torch.optim.SGD(parameters, 0.1, momentum=0.9)

    assert same(train(make, sgd, [Watcher(), Watcher(nested=True)]), train(make, sgd))
    assert same(train(make, torch.optim.AdamW, [ReplaceAll()]), train(make, torch.optim.AdamW))


OPTIMIZERS = {
    "foreach": lambda p: torch.optim.AdamW(p, 0.01, foreach=True),
    "fused": lambda p: torch.optim.AdamW(p, 0.01, fused=True),
    "differentiable": lambda p: torch.optim.SGD(list(p), 0.01, foreach=False),
    "closure": lambda p: torch.optim.LBFGS(p, max_iter=3),
    "adafactor": torch.optim.Adafactor,
}


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("tool", [Watcher, ReplaceAll])
def test_optimizers(name, tool):
    assert same(train(mlp, OPTIMIZERS[name], [tool()], 3), train(mlp, OPTIMIZERS[name], steps=3))


def mixed_in_place(x):
    y = x * 1
    y[0].mul_(3)
    y[:, 1].add_(x[:, 0])
    a, b = y.split([1, 1])
    return torch.cat([a.relu(), b.clone().sigmoid_()]).norm(dim=1).sum() + y.unbind(1)[2].sum()


@pytest.mark.parametrize("regime", ["autocast", "channels last", "double backward", "in place", "complex", "sparse"])
@pytest.mark.parametrize("tool", [Watcher, ReplaceAll])
def test_regimes(regime, tool):
    def run():
        torch.manual_seed(0)
        x = torch.randn(2, 3, requires_grad=True)
        if regime == "autocast":
            model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2))
            with torch.autocast("cpu", torch.bfloat16):
                loss = F.mse_loss(model(x), torch.ones(2, 2))
            loss.backward()
            return [x.grad, *(p.grad for p in model.parameters())]
        if regime == "channels last":
            model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).to(memory_format=torch.channels_last)
            model(pixels().to(memory_format=torch.channels_last)).sum().backward()
            assert model[0].weight.grad.is_contiguous(memory_format=torch.channels_last)
            return [p.grad for p in model.parameters()]
        if regime == "double backward":
            (g,) = torch.autograd.grad((x.sin() * x**3).sum(), x, create_graph=True)
            g.square().sum().backward()
            return [g.detach(), x.grad]
        if regime == "in place":
            mixed_in_place(x).backward()
        if regime == "complex":
            torch.view_as_real(torch.fft.fft(torch.complex(x, x * 2)).exp()).sum().backward()
        if regime == "sparse":
            w = torch.randn(5, 3, requires_grad=True)
            F.embedding(torch.tensor([1, 1, 2]), w, sparse=True).square().sum().backward()
            return [w.grad.to_dense()]
        return [x.grad]

    expected = run()
    watching = tool()
    with amanda.apply(watching):
        for _ in range(3):
            assert same(run(), expected)
