"""Tools that edit, inside transformations of torch.func and in forward-mode differentiation: they work, or leave operands
alone and count them. They never end the program, and what they keep serves the program afterwards.
"""

import copy
import warnings

import amanda
import pytest
import torch
import torch.nn.functional as F
import torch.nn.utils.prune
from amanda.research import LearnedStepQuantization
from amanda.research.error_injection import BitFlip, ErrorInjection
from amanda.research.pruning import TilewisePruning
from amanda.tools.pruning import MagnitudePruning
from amanda.tools.quantization import (
    DynamicQuantization,
    FakeQuantization,
    StaticQuantization,
    int8_activation,
    int8_weight,
)
from torch import nn
from torch.autograd import forward_ad
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vjp, vmap


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(4, 3), nn.Linear(3, 2)

    def forward(self, x):
        return self.second(self.first(x * 1).relu())  # a leaf with a gradient would be a new place in each run


def samples():
    return torch.arange(24.0).reshape(6, 4).sin()


def loss(model, weights, x):
    return functional_call(model, weights, (x,)).square().sum()


def weights_of(model):
    return {name: weight.detach() for name, weight in model.named_parameters()}


def dual(model, x):
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(model(forward_ad.make_dual(x, x)))


def ensemble(model, x):
    weights = {name: torch.stack([weight, weight * 2]) for name, weight in weights_of(model).items()}
    return vmap(lambda weights: functional_call(model, weights, (x,)))(weights)


PROGRAMS = {
    "vmap": lambda model, x: vmap(model)(x),
    "vmap of weights": ensemble,
    "jvp": lambda model, x: jvp(model, (x,), (x,)),
    "vjp": lambda model, x: vjp(model, x)[1](torch.ones(6, 2)),
    "grad": lambda model, x: grad(lambda weights: loss(model, weights, x))(weights_of(model)),
    "vmap of grad": lambda model, x: vmap(grad(lambda w, x: loss(model, w, x)), (None, 0))(weights_of(model), x),
    "jvp of vmap": lambda model, x: jvp(vmap(model), (x,), (x,)),
    "vmap of jvp": lambda model, x: vmap(lambda x: jvp(model, (x,), (x,)))(x),
    "hessian": lambda model, x: hessian(lambda x: model(x).square().sum())(x[0]),
    "jacfwd": lambda model, x: jacfwd(model)(x[0]),
    "jacrev": lambda model, x: jacrev(model)(x[0]),
    "functionalize": lambda model, x: torch.func.functionalize(model)(x),
    "jvp of functionalize": lambda model, x: jvp(torch.func.functionalize(model), (x,), (x,)),
    "dual numbers": dual,
}
TOOLS = {
    "FakeQuantization": FakeQuantization,
    "LearnedStepQuantization": LearnedStepQuantization,
    "StaticQuantization, calibrating": StaticQuantization,
    "MagnitudePruning": MagnitudePruning,
    "TilewisePruning": TilewisePruning,
    "ErrorInjection": lambda: ErrorInjection(BitFlip(1)),
}
CASES = [(name, program) for name in TOOLS for program in PROGRAMS]
CASES.remove(("TilewisePruning", "vmap of weights"))  # it takes parameters only, and says so


def is_wrapped(tensor):
    return torch._C._functorch.is_functorch_wrapped_tensor(tensor)


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # torch's: some observers have no rule for vmap
@pytest.mark.parametrize(("name", "program"), CASES)
def test_the_program_goes_on_inside_and_after_a_transformation(name, program):
    tool, model, x = TOOLS[name](), Net(), samples()
    with amanda.apply(tool):
        PROGRAMS[program](model, x)
    assert set(tool.skipped) <= {"transformed", "tangent"}
    str(tool.table())
    with amanda.apply(tool):
        model(x).sum().backward()
    if isinstance(tool, LearnedStepQuantization):
        assert not any(map(is_wrapped, tool.parameters()))
        assert any(step.grad is not None for step in tool.parameters())


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # torch's: its kernels have no rule for vmap
@pytest.mark.parametrize("program", ["vmap", "jvp", "functionalize", "jvp of vmap", "vmap of jvp", "dual numbers"])
@pytest.mark.parametrize("converted", [False, True], ids=["dynamic", "static"])
def test_kernels_on_integers_run_or_leave_tangents_alone(converted, program):
    tool, model, x = StaticQuantization() if converted else DynamicQuantization(), Net(), samples()
    run, has_tangents = PROGRAMS[program], "jvp" in program or "dual" in program
    with torch.no_grad(), amanda.apply(tool):
        plain = run(model, x)
        if converted:
            assert set(tool.skipped) <= {"transformed"}
            tool.convert()
        found = run(model, x)
    alone = run(model, x)
    if not has_tangents:
        torch.testing.assert_close(found, alone, atol=0.1, rtol=0.1)
        assert tool.skipped == {}
        return
    torch.testing.assert_close(found, alone)
    torch.testing.assert_close(plain, alone)
    assert tool.skipped["tangent"] >= 2
    assert "tangent" in {unseen.reason for unseen in tool.evidence().unseen}


def test_kernels_on_integers_leave_several_weights_at_once_alone(log):
    tool, model, x = DynamicQuantization(), Net(), samples()
    with torch.no_grad(), amanda.apply(tool):
        found = ensemble(model, x)
    assert torch.equal(found, ensemble(model, x))
    assert tool.skipped == {"transformed": 2}
    assert [line for line in log() if "transformation" in line] == [
        "[quantization] skips what it can't read: a tensor inside a transformation of torch.func, such as vmap (said once)"
    ]


# ---- FakeQuantization against PyTorch's operators -----------------------------------------------------------------------


def observed():
    """A tool whose ranges stay, and a function that computes the same by hand, from PyTorch's operators."""
    model, x = Net(), samples()
    tool = FakeQuantization({"linear": {"input": int8_activation, "weight": int8_weight}})
    return tool, model, x


def by_hand(model, rows):
    """The model with `fake_quantize` operators before each layer; `rows`: the ranges that a tool has found."""
    found = {(row.module_path, row.position): row for row in rows}

    def layer(name, x, weight, bias):
        at = found[name, "input"]
        x = torch.fake_quantize_per_tensor_affine(x, at.scale, at.zero_point, at.quant_min, at.quant_max)
        at = found[name, "weight"]
        limits = at.quant_min, at.quant_max
        weight = torch.fake_quantize_per_channel_affine(weight, at.scale, at.zero_point, 0, *limits)
        return F.linear(x, weight, bias)

    def run(x, weights=None):
        w = weights or dict(model.named_parameters())
        hidden = layer("first", x, w["first.weight"], w["first.bias"]).relu()
        return layer("second", hidden, w["second.weight"], w["second.bias"])

    return run


GRADIENTS = {
    "vjp": lambda run, x, w: vjp(run, x)[1](torch.ones(6, 2)),
    "grad": lambda run, x, w: grad(lambda w: run(x, w).square().sum())(w),
    "vmap of grad": lambda run, x, w: vmap(grad(lambda w, x: run(x, w).square().sum()), (None, 0))(w, x),
    "jacrev": lambda run, x, w: jacrev(run)(x[0]),
}


@pytest.mark.parametrize("program", GRADIENTS)
def test_fake_quantization_is_bit_equal_to_the_operators_of_pytorch(program):
    tool, model, x = observed()
    weights = weights_of(model)

    def run(x, w=None):
        return functional_call(model, w, (x,)) if w else model(x)

    with amanda.apply(tool):
        GRADIENTS[program](run, x, weights)
        tool.observe = False
        found = GRADIENTS[program](run, x, weights)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's operators have no rule for vmap
        expected = GRADIENTS[program](by_hand(model, tool.rows()), x, weights)
    same(found, expected)
    assert tool.skipped == {}


def same(found, expected):
    found, expected = (torch.utils._pytree.tree_leaves(each) for each in (found, expected))
    assert len(found) == len(expected) > 0
    assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize("program", ["jvp", "dual numbers"])
def test_tangents_pass_where_a_value_is_in_range(program):
    """The forward derivative is the transpose of the backward one."""
    tool, model, x = observed()
    with amanda.apply(tool):
        PROGRAMS[program](model, x)
        tool.observe = False
        value, tangent = PROGRAMS[program](model, x)
    run = by_hand(model, tool.rows())
    assert torch.equal(value, run(x))
    cotangent = torch.ones(6, 2)
    (backward,) = vjp(run, x)[1](cotangent)
    torch.testing.assert_close((tangent * cotangent).sum(), (backward * x).sum())


def test_ranges_of_a_transformed_run_are_those_of_a_plain_one():
    found = []
    for run in (lambda model, x: model(x), lambda model, x: vjp(model, x), lambda model, x: jvp(model, (x,), (x,))):
        tool, model, x = observed()
        with amanda.apply(tool):
            for _ in range(3):
                run(model, x)
        found.append([(row.scale.tolist(), row.zero_point.tolist()) for row in tool.rows()])
    assert found[0] == found[1] == found[2]
    assert len(found[0]) == 4


def test_a_weight_of_several_models_has_no_range_and_stays_as_it_is():
    tool, model, x = FakeQuantization({"linear": {"weight": int8_weight}}), Net(), samples()
    with amanda.apply(tool):
        found = ensemble(model, x)
    assert torch.equal(found, ensemble(model, x))
    assert tool.skipped == {"transformed": 2}
    assert [unseen.reason for unseen in tool.evidence().unseen] == ["transformed"]
    with amanda.apply(tool):
        model(x)
    assert len(tool.rows()) == 2


# ---- other tools that edit ----------------------------------------------------------------------------------------------


def test_pruning_leaves_several_weights_at_once_dense():
    tool, model, x = MagnitudePruning(0.5), Net(), samples()
    with amanda.apply(tool):
        found = ensemble(model, x)
    assert torch.equal(found, ensemble(model, x))
    assert tool.skipped == {"transformed": 2}
    with amanda.apply(tool):
        pruned = model(x)
    by_hand = copy.deepcopy(model)
    for layer in (by_hand.first, by_hand.second):
        nn.utils.prune.l1_unstructured(layer, "weight", 0.5)
    torch.testing.assert_close(pruned, by_hand(x))


def test_faults_do_not_hit_several_samples_at_once():
    tool, model, x = ErrorInjection(BitFlip(30)), Net(), samples()
    with amanda.apply(tool):
        found = vmap(model)(x)
    assert torch.equal(found, vmap(model)(x))
    assert (tool.faults, tool.skipped) == (0, {"transformed": 2})


def test_faults_hit_what_vmap_does_not_map_without_its_random_numbers():
    """Random operators of the program are an error there, by default; those of a tool are not the program's."""
    tool, model, x = ErrorInjection(BitFlip(30)), Net(), samples()
    with amanda.apply(tool):
        found = vmap(lambda scale: model(x) * scale)(torch.ones(2))
    assert tool.faults == 2
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], model(x))
