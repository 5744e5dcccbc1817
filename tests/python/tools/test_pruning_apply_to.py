"""WeightPruning.apply_to: a model that leaves Amanda computes what it did in the scope, as with torch's prune.remove."""

import copy
import re

import amanda
import pytest
import torch
import torch.nn.functional as F
import zoo
from amanda.research.pruning import TilewisePruning
from amanda.tools.pruning import MagnitudePruning, SparsitySchedule, VectorwisePruning
from equal_tensors import same
from pruned_by_hand import Network, batches, layers, train
from tool_regimes import REGIMES, in_regime
from torch.nn.utils import prune


def pruned_by_torch(model, share):
    for layer in layers(model).values():
        prune.l1_unstructured(layer, "weight", amount=share)
        prune.remove(layer, "weight")
    return model


def same_state(model, expected):
    found = model.state_dict()
    assert found.keys() == expected.keys()
    same([found[name] for name in expected], list(expected.values()))


def test_the_parameters_are_those_of_torchs_prune_made_permanent():
    torch.manual_seed(0)
    model, pruning = Network(), MagnitudePruning(0.7)
    expected = pruned_by_torch(copy.deepcopy(model), 0.7).state_dict()
    with amanda.apply(pruning):
        model(*batches(1))
    before = {id(parameter) for parameter in model.parameters()}
    pruning.apply_to(model)
    same_state(model, expected)
    assert {id(parameter) for parameter in model.parameters()} == before


@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize("make", [lambda: MagnitudePruning(0.6), VectorwisePruning, lambda: TilewisePruning(0.6, 4)])
def test_outside_of_scopes_the_model_is_what_it_was_inside(make, regime):
    torch.manual_seed(0)
    model, pruning, (x,) = Network(), make(), batches(1)
    with in_regime(regime, model) as run:
        with amanda.apply(pruning):
            train(model, 3, run=run)
            inside = run(x)
            pruning.apply_to(model)
            assert torch.equal(run(x), inside)
        with in_regime(regime, model) if regime == "autocast" else in_regime("checkpointing", model) as outside:
            assert torch.equal(outside(x), inside)
    assert (
        sum((parameter == 0).sum() for parameter in model.parameters())
        >= sum(row.pruned for row in pruning.rows()) // 2
    )


@pytest.mark.parametrize("make", [zoo.bert, zoo.resnet, zoo.vit, zoo.t5])
def test_library_models_leave_amanda(make):
    torch.manual_seed(0)
    model, inputs = make()
    pruning = MagnitudePruning(0.5, where=lambda context: context.module_path != "lm_head")
    model.eval()
    with amanda.apply(pruning):
        inside = model(**inputs)[0]
    pruning.apply_to(model)
    assert torch.equal(model(**inputs)[0], inside)
    assert pruning.rows("op")[0].pruned > 0


def test_views_of_a_parameter_are_written_through():
    attention = torch.nn.MultiheadAttention(8, 2, batch_first=True)
    query, key, value = torch.randn(3, 2, 5, 8)
    pruning = MagnitudePruning(0.5)
    with amanda.apply(pruning):
        inside, _ = attention(query, key, value)  # three slices of in_proj_weight
    assert [row.weights for row in pruning.rows()] == [64] * 4
    thirds = [third.flatten().abs().sort().values[32] for third in attention.in_proj_weight.chunk(3)]
    expected = torch.cat(
        [
            torch.where(third.abs() < limit, 0 * third, third)
            for third, limit in zip(attention.in_proj_weight.chunk(3), thirds, strict=True)
        ]
    )
    pruning.apply_to(attention)
    assert torch.equal(attention.in_proj_weight, expected)
    assert torch.equal(attention(query, key, value)[0], inside)


class Product(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(8, 6))
        self.weight.data[:, :2] *= 0.01  # what the slice leaves out is pruned first

    def forward(self, x):
        return x @ self.weight.t() + x[:, :4] @ self.weight.t()[2:]


def test_transposes_and_slices_that_disagree_are_refused_and_those_that_agree_are_not():
    torch.manual_seed(0)
    model, x = torch.nn.Sequential(Product(), torch.nn.Linear(8, 8)), torch.randn(3, 6)
    before = copy.deepcopy(model.state_dict())
    pruning = MagnitudePruning(0.5)
    with amanda.apply(pruning):
        model(x)
    with pytest.raises(amanda.Error) as error:
        pruning.apply_to(model)
    assert re.fullmatch(
        r"\[pruning\] '0.weight' is the weight of aten::matmul \(0, .*\) and of aten::matmul \(0, .*\), with different "
        "masks; leave both dense with where=, or give each a weight of its own",
        str(error.value),
    )
    same_state(model, before)  # nor is the linear layer half-way pruned
    pruning = MagnitudePruning(1.0)
    with amanda.apply(pruning):
        inside = model(x)
    pruning.apply_to(model)
    assert torch.equal(model(x), inside)


def test_the_model_may_be_converted_before():
    torch.manual_seed(0)
    model, pruning, (x,) = Network(), MagnitudePruning(0.5), batches(1)
    with amanda.apply(pruning):
        model(x)
    expected = pruned_by_torch(copy.deepcopy(model), 0.5).double()
    model.to(memory_format=torch.channels_last).double()
    pruning.apply_to(model)
    same_state(model, expected.state_dict())


def test_what_the_next_run_would_use_is_written():
    layer, schedule = torch.nn.Linear(10, 10), SparsitySchedule(0, 0.5, end=1, every=1)
    pruning = MagnitudePruning(schedule)
    with amanda.apply(pruning):
        layer(torch.ones(1, 10))
        schedule.step()
    pruning.apply_to(layer)
    assert (layer.weight == 0).sum() == 50
    layer, pruning = torch.nn.Linear(10, 10), TilewisePruning(0.5, 5)
    with amanda.apply(pruning):
        layer(torch.ones(1, 10))  # one run, dense
    pruning.apply_to(layer)
    assert (layer.weight == 0).sum() == 50


def test_models_that_are_gone_and_several_at_once():
    pruning = MagnitudePruning(0.5)
    gone, first, second = (torch.nn.Linear(4, 4) for _ in range(3))
    with amanda.apply(pruning):
        gone(torch.ones(1, 4)), first(torch.ones(1, 4)), second(torch.ones(1, 4))
    del gone
    pruning.apply_to(torch.nn.ModuleList([first, second]))
    assert [(layer.weight == 0).sum() for layer in (first, second)] == [8, 8]


# ---- mistakes --------------------------------------------------------------------------------------------------------


def test_a_model_that_was_not_pruned_is_refused(says):
    model, pruning = Network(), MagnitudePruning()
    with says(TypeError, "[pruning] apply_to takes the model that was pruned, got 'model'"):
        pruning.apply_to("model")
    with says(
        amanda.Error,
        "[pruning] nothing has been pruned that still exists; run the model in a scope of the tool first",
    ):
        pruning.apply_to(model)
    with amanda.apply(pruning):
        model(*batches(1))
    for other in (copy.deepcopy(model), model.head):
        before = copy.deepcopy(other.state_dict())
        with pytest.raises(amanda.Error) as error:
            pruning.apply_to(other)
        assert re.fullmatch(
            rf"\[pruning\] aten::conv2d \(conv, .*\) was pruned, and its weight 'conv.weight' is not a parameter of this "
            rf"{type(other).__name__}; pass the model that ran in the scope, not a copy or a part of it, or several in a "
            "torch.nn.ModuleList",
            str(error.value),
        )
        same_state(other, before)


def test_a_weight_that_is_computed_is_refused_by_name():
    layer, pruning = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(4, 4)), MagnitudePruning()
    with amanda.apply(pruning):
        layer(torch.ones(1, 4))
    with pytest.raises(amanda.Error, match=r"\[pruning\] the weight of aten::linear \(.*\) is computed, or no"):
        pruning.apply_to(layer)
    torch.nn.utils.parametrize.remove_parametrizations(layer, "weight")
    pruning.reset()
    with amanda.apply(pruning):
        layer(torch.ones(1, 4))
    pruning.apply_to(layer)
    assert (layer.weight == 0).sum() == 8


def test_a_weight_that_is_also_used_dense_is_refused():
    weight, pruning = torch.nn.Linear(4, 4), MagnitudePruning(where=lambda context: context.op.__name__ == "linear")
    with amanda.apply(pruning):
        weight(torch.ones(1, 4)), torch.ones(1, 4) @ weight.weight
    with pytest.raises(
        amanda.Error, match=r"'weight' is the weight of aten::linear .* and of aten::matmul .*, with diff"
    ):
        pruning.apply_to(weight)


def test_a_weight_that_an_embedding_also_holds_is_refused():
    torch.manual_seed(0)
    model, inputs = zoo.gpt2()
    model.eval()
    pruning = MagnitudePruning(0.5)
    with amanda.apply(pruning):
        model(**inputs)
    with pytest.raises(amanda.Error) as error:
        pruning.apply_to(model)
    assert re.fullmatch(
        r"\[pruning\] transformer.wte.weight and lm_head.weight are one parameter, but only aten::linear \(lm_head, .*\) "
        "was pruned; leave it dense with where=, or give each module a weight of its own",
        str(error.value),
    )
    pruning = MagnitudePruning(0.5, where=lambda context: context.module_path != "lm_head")
    with amanda.apply(pruning):
        inside = model(**inputs).logits
    pruning.apply_to(model)
    assert torch.equal(model(**inputs).logits, inside)


def test_layers_that_share_a_weight_and_its_mask_are_not():
    first, second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
    second.weight = first.weight
    model, pruning, x = torch.nn.Sequential(first, second), MagnitudePruning(0.5), torch.ones(1, 4)
    with amanda.apply(pruning):
        inside = model(x)
    pruning.apply_to(model)
    assert torch.equal(F.linear(first(x), first.weight, second.bias), inside)
