"""Compiled models of all kinds under a tool that looks at everything: not one bit differs, and no operator is missing.

They are the architectures that differ most. `make compiled-zoo` runs all, a ResNet-50 among them, with any backend.
"""

from __future__ import annotations

import amanda
import compiled_zoo
import pytest
import torch
import zoo
from compiled_zoo import Trained, tensors
from compiling import Keeps, Looks, apply, operators_of
from unharmed import bits

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning"),
    pytest.mark.usefixtures("no_compiled_code"),
]


@pytest.fixture
def no_compiled_code():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


OTHER_CODE_WHEN_COMPILED = {zoo.gpt2}  # it asks is_compiling()
# What eager mode runs to make a tensor of Python's numbers: a compiled program holds the tensor.
CONSTANTS = {"empty", "to", "detach_"}
MAKERS = [compiled_zoo.mlp, compiled_zoo.attention, compiled_zoo.convnet, zoo.bert, zoo.gpt2, zoo.resnet]
LONG = {compiled_zoo.attention, zoo.bert, zoo.gpt2, zoo.resnet}
MODELS = [
    pytest.param(make, id=make.__name__, marks=pytest.mark.long if make in LONG else pytest.mark.slow)
    for make in MAKERS
]


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


@pytest.mark.slow
@pytest.mark.parametrize("make", [zoo.mamba, zoo.mixtral], ids=lambda make: make.__name__)
def test_layers_that_are_recomputed_are_the_same_to_the_last_bit(make):
    """They run inside a higher-order operator, where the results of taps take the place of what tools were shown."""
    trained, looks = Trained(make), Looks()
    trained.model.gradient_checkpointing_enable({"use_reentrant": False})
    compiled = torch.compile(trained.model, backend="aot_eager")
    expected = trained.step(compiled)
    with apply(looks):
        assert trained.step(compiled) == expected
    assert looks.values > 100


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
