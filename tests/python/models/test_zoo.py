"""Models of all kinds, trained for two steps under tools that must not change them: not one bit differs."""

# ruff: noqa: C408 -- configurations read better so
import functools
from collections import Counter
from itertools import chain

import amanda
import pytest
import torch
import torch.nn.functional as F
import zoo
from backward_tools import graph_names
from faithful import HandBack, Look, RunOriginal
from torch.utils._pytree import tree_leaves

nn = torch.nn

ARCHITECTURES = {
    "encoder": [zoo.bert, zoo.distilbert, zoo.deberta],
    "decoder": [zoo.gpt2, zoo.llama, zoo.opt, zoo.gemma],
    "encoder-decoder": [zoo.t5, zoo.bart],
    "mixture of experts": [zoo.mixtral],
    "state space": [zoo.mamba],
    "vision": [zoo.vit, zoo.swin, zoo.resnet, zoo.convnext],
    "audio": [zoo.whisper, zoo.wav2vec2],
    "contrastive": [zoo.clip],
}


def convnet():
    layers = [nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Dropout2d(0.2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(900, 4)), dict(input=zoo.pixels())


def transformer():
    model = nn.Transformer(8, 2, 1, 1, 16, batch_first=True)
    return model, dict(src=torch.randn(2, 3, 8), tgt=torch.randn(2, 4, 8))


def recurrent():
    return nn.GRU(4, 8, num_layers=2, bidirectional=True, dropout=0.5), dict(input=torch.randn(5, 2, 4))


def unet():
    class UNet(nn.Module):
        def __init__(self):
            super().__init__()
            self.down, self.up = nn.Conv2d(3, 4, 3, stride=2, padding=1), nn.ConvTranspose2d(4, 4, 2, stride=2)
            self.norm, self.last = nn.InstanceNorm2d(4, affine=True), nn.Conv2d(7, 3, 1)

        def forward(self, x):
            y = F.silu(self.norm(self.down(x)), inplace=True)
            y = F.interpolate(self.up(y), scale_factor=0.5, mode="bilinear")
            return torch.sigmoid(self.last(torch.cat([F.interpolate(y, x.shape[-2:]), x], dim=1)))

    return UNet(), dict(x=zoo.pixels())


def recommender():
    class Recommender(nn.Module):
        def __init__(self):
            super().__init__()
            self.bag = nn.EmbeddingBag(20, 8, mode="mean")
            self.table = nn.Embedding(10, 8, sparse=False, max_norm=1.0)
            self.top = nn.Sequential(nn.Linear(16, 8), nn.PReLU(), nn.LayerNorm(8), nn.Linear(8, 1))

        def forward(self, items, user):
            return self.top(torch.cat([self.bag(items), self.table(user)], dim=1)).squeeze(1)

    return Recommender(), dict(items=torch.arange(12).reshape(3, 4), user=torch.tensor([1, 5, 5]))


def tied():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.out = nn.Embedding(11, 8), nn.Linear(8, 11, bias=False)
            self.out.weight = self.embed.weight
            self.frozen = nn.Linear(8, 8).requires_grad_(False)

        def forward(self, x):
            return F.log_softmax(self.out(self.frozen(self.embed(x)).tanh()), dim=-1)

    return Tied(), dict(x=torch.arange(6).reshape(2, 3))


PLAIN = [convnet, transformer, recurrent, unet, recommender, tied]
FROM_TRANSFORMERS = list(chain.from_iterable(ARCHITECTURES.values()))
FAST = [first for first, *_ in ARCHITECTURES.values()] + PLAIN  # one of each kind
MODELS = [
    pytest.param(make, id=make.__name__, marks=[] if make in FAST else pytest.mark.slow)
    for make in [*FROM_TRANSFORMERS, *PLAIN]
]


def test_the_zoo_is_as_large_as_it_says():
    assert len(set(FROM_TRANSFORMERS)) >= 15
    assert len(ARCHITECTURES) == 8


def tensors(value):
    value = value.to_tuple() if hasattr(value, "to_tuple") else value
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def same_bits(got, expected):
    """NaNs and the sign of zero count."""

    def raw(tensor):
        return tensor.detach().contiguous().numpy().tobytes()

    pairs = list(zip(got, expected, strict=True))
    return all(a.dtype == b.dtype and a.stride() == b.stride() and raw(a) == raw(b) for a, b in pairs)


def train(make, optimizer, tool=None, after_backward=lambda model, loss: None):
    """Two steps; all that they leave behind: outputs, gradients, weights, buffers, the optimizer's and the random state."""
    torch.manual_seed(0)
    model, inputs = make()
    model.train()
    stepper = optimizer([parameter for parameter in model.parameters() if parameter.requires_grad])
    left = []
    with amanda.apply(*([tool] if tool else [])):
        for _ in range(2):
            stepper.zero_grad()
            outputs = model(**inputs)
            loss = getattr(outputs, "loss", None)
            if loss is None:
                loss = sum(out.square().mean() for out in tensors(outputs) if out.requires_grad)
            with amanda.disabled():
                nodes = graph_names(loss)
            loss.backward()
            stepper.step()
            left += [loss, *tensors(outputs)]
            left += [p.grad.clone() for p in model.parameters() if p.grad is not None]
            after_backward(model, nodes)
    state = [leaf for leaf in tree_leaves(stepper.state_dict()) if isinstance(leaf, torch.Tensor)]
    return [*left, *model.parameters(), *model.buffers(), *state, torch.get_rng_state()]


@functools.cache
def plain(make, optimizer):
    return train(make, optimizer)


def adam(parameters):
    return torch.optim.AdamW(parameters, 0.01)


def momentum(parameters):
    return torch.optim.SGD(parameters, 0.1, momentum=0.9)


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("make", MODELS)
def test_two_steps_of_training_are_the_same_to_the_last_bit(make):
    expected = plain(make, adam)
    look = Look()
    steps = []

    def check(model, nodes):
        seen = look.backward - Counter(sum(steps, Counter()))
        steps.append(seen)
        with amanda.disabled():
            assert seen == nodes
            assert seen["AccumulateGrad"] >= sum(p.grad is not None for p in model.parameters()) > 0

    assert same_bits(train(make, adam, look, check), expected)
    assert len(steps) == 2
    assert sum(look.forward.values()) > 20


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("make", MODELS)
@pytest.mark.parametrize("tool", [HandBack, RunOriginal])
def test_handing_everything_back_is_the_same_to_the_last_bit(make, tool):
    assert same_bits(train(make, momentum, tool()), plain(make, momentum))
