"""Compiled models of all kinds under a tool that looks at everything: not one bit differs, and no operator is missing."""

from __future__ import annotations

# ruff: noqa: C408 -- configurations read better so
import amanda
import pytest
import torch
import zoo
from compiling import Keeps, Looks, apply, differentiate, operators_of
from torch.utils._pytree import tree_leaves
from unharmed import bits

nn = torch.nn

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning"),
    pytest.mark.usefixtures("no_compiled_code"),
]


@pytest.fixture
def no_compiled_code():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def mlp():
    layers = [nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(inplace=True), nn.Dropout(0.5), nn.Linear(8, 2)]
    return nn.Sequential(*layers), dict(input=torch.randn(3, 4))


def attention():
    model = nn.TransformerDecoderLayer(8, 2, 16, batch_first=True)
    return model, dict(tgt=torch.randn(2, 3, 8), memory=torch.randn(2, 4, 8))


def convnet():
    layers = [
        nn.Conv2d(3, 4, 3),
        nn.GroupNorm(2, 4),
        nn.SiLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Upsample(scale_factor=2),
    ]
    return nn.Sequential(*layers), dict(input=zoo.pixels())


def resnet50():
    import transformers

    config = transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16, 32, 64])  # as deep, and not as wide
    return transformers.ResNetModel(config), dict(pixel_values=zoo.pixels())


SMALL = [mlp, attention, convnet]
LARGE = [zoo.bert, zoo.gpt2, resnet50]
OTHER_CODE_WHEN_COMPILED = {zoo.gpt2}  # it asks is_compiling()
# What eager mode runs to make a tensor of Python's numbers: a compiled program holds the tensor.
CONSTANTS = {"empty", "to", "detach_"}
MODELS = [pytest.param(make, id=make.__name__) for make in SMALL]
MODELS += [pytest.param(make, id=make.__name__) for make in LARGE]


class Trained:
    """A model, what it starts from, and its training step."""

    def __init__(self, make):
        torch.manual_seed(0)
        self.model, self.inputs = make()
        self.state = {name: value.clone() for name, value in self.model.state_dict().items()}

    def step(self, run):
        """All that one step leaves behind."""
        with amanda.disabled():
            torch.manual_seed(1)
            self.model.train().zero_grad()
            self.model.load_state_dict(self.state)
            optimizer = torch.optim.SGD(self.model.parameters(), 0.1)
        results = run(**self.inputs)
        differentiate(results)
        with amanda.disabled():
            gradients = [parameter.grad for parameter in self.model.parameters() if parameter.grad is not None]
            optimizer.step()
            left = bits([*tensors(results), *gradients, *self.model.state_dict().values(), torch.get_rng_state()])
        return left


def tensors(results):
    results = results.to_tuple() if hasattr(results, "to_tuple") else results
    return [leaf for leaf in tree_leaves(results) if isinstance(leaf, torch.Tensor)]


@pytest.mark.parametrize("make", MODELS)
def test_a_step_of_training_is_the_same_to_the_last_bit(make):
    trained, keeps, looks, eager = Trained(make), Keeps(), Looks(), Looks()
    compiled = torch.compile(trained.model, backend=keeps)
    expected = trained.step(compiled)
    forward, backward = operators_of(keeps)
    trained.model.load_state_dict(trained.state)
    graphs = len(keeps.calls)

    with apply(looks):
        for _ in range(2):
            looks.clear()
            assert trained.step(compiled) == expected
    assert len(keeps.calls) == 2 * graphs
    assert trained.step(compiled) == expected
    assert len(keeps.calls) == 2 * graphs

    with amanda.apply(eager):
        trained.step(trained.model)
    if make not in OTHER_CODE_WHEN_COMPILED:
        assert (forward, backward) == (eager.forward, eager.backward)
        assert looks.places.items() <= eager.places.items()
        assert {eager.places[op_id][0] for op_id in eager.places.keys() - looks.places.keys()} <= CONSTANTS
    assert not looks.forward - forward
    assert set(forward - looks.forward) <= CONSTANTS
    assert looks.backward == backward


@pytest.mark.parametrize("make", MODELS)
def test_inference_is_the_same_to_the_last_bit(make):
    trained, keeps, looks = Trained(make), Keeps(), Looks()
    model = trained.model.eval()
    compiled = torch.compile(model, backend=keeps)

    def infer():
        with torch.no_grad():
            results = compiled(**trained.inputs)
        with amanda.disabled():
            return bits(tensors(results))

    expected = infer()
    with torch.no_grad():
        forward, _ = operators_of(keeps)
    with apply(looks):
        assert infer() == expected
    assert not looks.forward - forward
    assert set(forward - looks.forward) <= CONSTANTS
    assert not looks.backward
    assert looks.values > 10
