"""Tools that ship on functions that stay compiled: what they do in eager mode, or an error that says why not."""

import amanda
import pytest
import torch
from amanda.tools.effective_path import EffectivePath
from amanda.tools.error_injection import BitFlip, ErrorInjection
from amanda.tools.flops import Flops
from amanda.tools.graph import GraphTracing
from amanda.tools.histograms import ValueHistograms
from amanda.tools.profile import Profile
from amanda.tools.pruning import (
    ActivationPruning,
    ChannelPruning,
    HeadPruning,
    MagnitudePruning,
    SparsitySchedule,
    TilewisePruning,
    VectorwisePruning,
)
from amanda.tools.quantization import FakeQuantization, LearnedStepQuantization
from amanda.tools.rewriting import SubgraphRewriting
from amanda.tools.statistics import OpStatistics

STEPS = 3


def make_model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))


def train(call, model, steps=STEPS):
    """Outputs, and parameters after each step."""
    optimizer, seen = torch.optim.SGD(model.parameters(), lr=0.1), []
    for step in range(steps):
        optimizer.zero_grad()
        output = call(torch.linspace(-1, 1 + step, 12).view(3, 4))
        output.square().sum().backward()
        with amanda.disabled():
            optimizer.step()
            seen += [output.detach().clone(), *(parameter.detach().clone() for parameter in model.parameters())]
    return seen


def trained(tool, **how):
    model = make_model()
    call = torch.compile(model, backend="aot_eager") if how else model
    with amanda.apply(tool, **how):
        return train(call, model)


def assert_same(found, expected):
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


EDITING = {
    "MagnitudePruning": lambda: MagnitudePruning(0.5),
    "SparsitySchedule": lambda: MagnitudePruning(SparsitySchedule(0.25, 0.5, end=2, every=1)),
    "VectorwisePruning": lambda: VectorwisePruning(),
    "TilewisePruning": lambda: TilewisePruning(0.5, tile=2),
    "ActivationPruning": lambda: ActivationPruning(threshold=0.3),
    "FakeQuantization": FakeQuantization,
    "LearnedStepQuantization": lambda: LearnedStepQuantization(bits=3),
    "ErrorInjection": lambda: ErrorInjection(BitFlip(30), ops="linear", index=[(0, 1)]),
}


@pytest.mark.parametrize("name", EDITING)
def test_a_tool_edits_a_compiled_function_as_an_eager_one(name):
    eager, compiled = EDITING[name](), EDITING[name]()
    expected, found = trained(eager), trained(compiled, compiled="graph")
    assert_same(found, expected)
    assert any(not torch.equal(a, b) for a, b in zip(found, trained(amanda.Tool("nothing")), strict=True))
    assert [repr(row) for row in compiled.rows()] == [repr(row) for row in eager.rows()]


OBSERVING = {
    "OpStatistics": (OpStatistics, "calls"),
    "ValueHistograms": (ValueHistograms, "calls"),
    "Profile": (Profile, "calls"),
    "Flops": (Flops, "flops"),
    "GraphTracing": (GraphTracing, "nodes"),
}


@pytest.mark.parametrize("name", OBSERVING)
def test_a_tool_counts_in_a_compiled_function_what_it_counts_in_an_eager_one(name):
    make, field = OBSERVING[name]
    eager, compiled = make(), make()
    with amanda.apply(amanda.Tool("nothing"), compiled="opaque"):
        model = make_model()
        expected = train(torch.compile(model, backend="aot_eager"), model)
    trained(eager)
    found = trained(compiled, compiled="graph")
    assert all(map(torch.equal, found, expected))  # a tool that looks changes nothing, bit for bit

    def linear(tool):
        return sorted((row.name, getattr(row, field)) for row in tool.rows("op") if row.name == "aten::linear")

    assert linear(compiled) == linear(eager) != []


REFUSING = {
    "ChannelPruning": (ChannelPruning, torch.nn.Conv2d(1, 2, 1), "it follows calls of modules"),
    "HeadPruning": (lambda: HeadPruning({0: [0]}), torch.nn.Softmax(-1), "it follows calls of modules"),
    "EffectivePath": (EffectivePath, torch.nn.ReLU(), "it replaces autograd nodes one by one"),
    "SubgraphRewriting": (
        lambda: SubgraphRewriting("relu", lambda relu: relu.op(relu.self)),
        torch.nn.ReLU(),
        "it defers operators until their results are read",
    ),
}


@pytest.mark.parametrize("name", REFUSING)
def test_a_tool_that_cannot_work_in_compiled_functions_says_why(name):
    make, model, why = REFUSING[name]
    call = torch.compile(model, backend="aot_eager")
    with pytest.raises(amanda.Error, match=f"{name} can't work in compiled functions, as aten::.*: {why}") as caught:  # noqa: SIM117
        with amanda.apply(make(), compiled="graph"):
            call(torch.ones(1, 1, 2, 2))
    assert str(caught.value).endswith('; apply it with compiled="eager"')


# ---- masks -----------------------------------------------------------------------------------------------------------


def test_a_mask_made_in_eager_mode_is_the_mask_of_the_compiled_model():
    model, pruning = make_model(), MagnitudePruning(0.5)
    x = torch.ones(3, 4)
    with amanda.apply(pruning):
        train(model, model)
        expected = model(x)
    call = torch.compile(model, backend="aot_eager")
    with amanda.apply(pruning, compiled="graph"):
        assert_same([call(x)], [expected])
        pruning.apply_to(model)
    assert_same([model(x)], [expected])


def test_masks_are_part_of_compiled_code_until_they_change(monkeypatch):
    calls, multiply = [], MagnitudePruning._multiply

    def counted(self, *args, **kwargs):
        calls.append(1)
        return multiply(self, *args, **kwargs)

    monkeypatch.setattr(MagnitudePruning, "_multiply", counted)
    model, pruning, x = make_model(), MagnitudePruning(0.5), torch.ones(3, 4)
    call = torch.compile(model, backend="aot_eager")
    with torch.no_grad(), amanda.apply(pruning, compiled="graph"):
        call(x)
        traced = len(calls)
        first = call(x)
        assert len(calls) == traced  # no call in a run
        pruning.sparsity = 0.9
        assert not torch.equal(call(x), first)
        assert {row.sparsity for row in pruning.rows()} == {0.9375, 0.875}
        pruning.sparsity = 0.5
        assert torch.equal(call(x), first)
        model[0].weight.neg_()
        model[0].weight[0] *= 10
        pruning.reset()
        reset = call(x)
    with torch.no_grad(), amanda.apply(MagnitudePruning(0.5)):
        assert_same([reset], [model(x)])


def test_ranges_stay_when_observing_ends():
    model, x = make_model(), torch.ones(3, 4)
    call = torch.compile(model, backend="aot_eager")
    eager, compiled = FakeQuantization(), FakeQuantization()
    with torch.no_grad():
        with amanda.apply(eager):
            model(x)
            eager.observe = False
            expected = model(x * 3)
            eager.quantize = False
            plain = model(x)
        with amanda.apply(compiled, compiled="graph"):
            call(x)
            compiled.observe = False
            assert_same([call(x * 3)], [expected])
            compiled.quantize = False
            assert_same([call(x)], [plain])
    assert [repr(row.scale) for row in compiled.rows()] == [repr(row.scale) for row in eager.rows()]


def test_a_range_is_needed_before_a_function_is_compiled_with_it():
    model, quantization = make_model(), FakeQuantization()
    quantization.observe = False
    call = torch.compile(model, backend="aot_eager")
    with pytest.raises(amanda.Error, match="has no range yet; run the program with observe = True first"):  # noqa: SIM117
        with amanda.apply(quantization, compiled="graph"):
            call(torch.ones(3, 4))
