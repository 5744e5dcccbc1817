"""TilewisePruning against loops in numpy over all layers, and training against torch's prune with those masks."""

# ruff: noqa: SIM117 -- outside what is expected, inside where it comes from

import copy
import itertools
import math

import amanda
import numpy as np
import pytest
import torch
import zoo
from amanda.research.pruning import TilewisePruning
from amanda.tools.pruning import SparsitySchedule
from equal_tensors import same
from pruned_by_hand import LAYERS, STEPS, Network, batches, dense, layers, mask_by_torch, regime_by_hand, results, train
from tool_regimes import REGIMES, in_regime

# ---- the oracle ------------------------------------------------------------------------------------------------------


def ranked_by_loops(scores, sparsity, tile, columns=False):
    """Masks for matrices of importance, a row for each output."""
    total, gone = sum(score.size for score in scores), 0
    masks = [np.ones(score.shape) for score in scores]

    def prune(units, count):
        nonlocal gone
        for _, _, m, outputs, inputs in sorted(units):
            if gone >= count:
                break
            for output in outputs:
                for column in inputs:
                    masks[m][output, column] = 0
                    gone += 1

    outputs = [list(range(len(score))) for score in scores]
    if columns:
        units = []
        for m, score in enumerate(scores):
            for n in range(score.shape[0]):
                units.append((np.mean(score[n]), len(units), m, [n], list(range(score.shape[1]))))
        prune(units, round((1 - math.sqrt(1 - sparsity)) * total))
        outputs = [[n for n in left if masks[m][n].all()] for m, left in enumerate(outputs)]
    units = []
    for m, score in enumerate(scores):
        for start in range(0, len(outputs[m]), tile):
            group = outputs[m][start : start + tile]
            for k in range(score.shape[1]):
                units.append((np.mean([score[n, k] for n in group]), len(units), m, group, [k]))
    prune(units, round(sparsity * total))
    return masks


def gemms(layer, tensor):
    """The matrices of a layer's GEMMs, one for each group, as copies."""
    values = tensor.detach().double().numpy()
    groups = getattr(layer, "groups", 1)
    if isinstance(layer, torch.nn.ConvTranspose2d):
        return [part.reshape(len(part), -1).T for part in np.split(values, groups)]
    return [part.reshape(len(part), -1) for part in np.split(values, groups)]


def back(layer, tensor, masks):
    if isinstance(layer, torch.nn.ConvTranspose2d):
        masks = [mask.T for mask in masks]
    return torch.tensor(np.concatenate(masks)).reshape(tensor.shape).to(tensor.dtype)


def masks_by_loops(modules, importances, *how):
    """The mask of each module, by name."""
    matrices = {name: gemms(module, importances[name]) for name, module in modules.items()}
    masks = ranked_by_loops([matrix for each in matrices.values() for matrix in each], *how)
    return {
        name: back(module, module.weight, [masks.pop(0) for _ in matrices[name]]) for name, module in modules.items()
    }


def mask_by_hand(model, *how, names=LAYERS):
    modules = {name: layer for name, layer in layers(model).items() if name in names}
    masks = masks_by_loops(modules, {name: dense(layer).abs() for name, layer in modules.items()}, *how)
    for name, layer in modules.items():
        mask_by_torch(layer, masks[name])


# ---- masks -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("tile", [1, 3, 128])
@pytest.mark.parametrize("sparsity", [0.0, 0.3, 0.9, 1.0])
def test_masks_are_those_of_loops_over_all_layers(sparsity, tile, columns):
    torch.manual_seed(0)
    model, (x,) = Network(), batches(1)
    by_hand = copy.deepcopy(model)
    mask_by_hand(by_hand, sparsity, tile, columns)
    pruning = TilewisePruning(sparsity, tile, columns=columns)
    with amanda.apply(pruning):
        found = [model(x) for _ in range(3)]
    same(found, [model(x), by_hand(x), by_hand(x)])  # the first run is dense
    pruning.apply_to(model)
    expected = {name: dense(layer) * layer.weight_mask for name, layer in layers(by_hand).items()}
    same([layer.weight for layer in layers(model).values()], list(expected.values()))
    pruned = {name: int((layer.weight_mask == 0).sum()) for name, layer in layers(by_hand).items()}
    assert {row.module_path: row.pruned for row in pruning.rows()} == pruned  # of "twice" the second operator


def test_equal_scores_go_in_the_order_in_which_operators_first_ran():
    first, second = (torch.nn.Linear(4, 4, bias=False) for _ in range(2))
    for layer in (first, second):
        torch.nn.init.ones_(layer.weight)
    pruning = TilewisePruning(0.5, tile=2)
    with amanda.apply(pruning):
        for _ in range(2):
            out = second(torch.eye(4)), first(torch.eye(4))
    assert out[0].eq(0).all()
    assert out[1].eq(1).all()


@pytest.mark.parametrize(
    ("shape", "call"),
    [
        ((6, 4), lambda x, w: x[:, :6] @ w),
        ((4, 6), lambda x, w: x[:, :6] @ w.t()),
        ((3, 6, 4), lambda x, w: torch.bmm(x[:, :6].expand(3, 5, 6), w)),
        ((5, 3), lambda x, w: w.t() @ x),
    ],
)
def test_factors_of_matrix_products_are_cut_along_their_outputs(shape, call):
    x, weight = torch.randn(5, 8), torch.nn.Parameter(torch.randn(shape))
    values = weight.detach().double().numpy()
    if len(shape) == 3:
        masks = np.stack([mask.T for mask in ranked_by_loops([abs(v).T for v in values], 0.5, 2)])
    elif shape == (4, 6):
        (masks,) = ranked_by_loops([abs(values)], 0.5, 2)
    else:
        masks = ranked_by_loops([abs(values).T], 0.5, 2)[0].T
    with amanda.apply(TilewisePruning(0.5, 2)):
        found = [call(x, weight) for _ in range(2)]
    same(found, [call(x, weight), call(x, weight * torch.tensor(masks).float())])


def test_taylor_masks_are_those_of_loops_with_gradients():
    torch.manual_seed(0)
    model, (x,) = Network(), batches(1)
    pruning = TilewisePruning(0.6, 4, importance="taylor")
    with amanda.apply(pruning):
        model(x).square().mean().backward()
        importances = {name: (layer.weight * layer.weight.grad).abs() for name, layer in layers(model).items()}
        masks = masks_by_loops(layers(model), importances, 0.6, 4)
        pruning.rank()
        found = model(x)
    for name, layer in layers(model).items():
        mask_by_torch(layer, masks[name])
    assert torch.equal(found, model(x))


# ---- training --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("regime", REGIMES)
def test_training_is_that_of_torchs_prune_with_masks_from_the_second_step_on(regime):
    torch.manual_seed(0)
    model = Network()
    by_hand = copy.deepcopy(model)

    def before(step):
        if step == 0:
            mask_by_hand(by_hand, 0.0, 4)  # ones: casts of autocast are those of a product, too
        if step == 1:
            mask_by_hand(by_hand, 0.7, 4)

    with regime_by_hand(regime, by_hand) as run:
        expected = train(by_hand, STEPS[regime], run=run, before=before)
    with in_regime(regime, model) as run, amanda.apply(TilewisePruning(0.7, 4)):
        losses = train(model, STEPS[regime], run=run)
    same(losses + results(model), expected + results(by_hand))


def test_gradual_pruning_by_taylor_importance_only_grows():
    torch.manual_seed(0)
    model, schedule = Network(), SparsitySchedule(0.2, 0.8, begin=1, end=9, every=2)
    pruning, kept = TilewisePruning(schedule, 4, importance="taylor"), []

    def after(step):
        schedule.step()
        kept.append([masked.mask for masked in pruning._known()])

    with amanda.apply(pruning):
        train(model, 10, after=after)
    assert all(kept[-1][i].sum() < kept[0][i].sum() for i in range(len(kept[0])))
    for now, then in itertools.pairwise(kept):
        assert all(torch.equal(later * earlier, later) for later, earlier in zip(then, now, strict=True))
    shares = [row.pruned for row in pruning.rows("op")], [row.weights for row in pruning.rows("op")]
    assert sum(shares[0]) / sum(shares[1]) == pytest.approx(0.8, abs=0.01)


def test_with_a_schedule_all_layers_are_ranked_anew_at_each_change():
    torch.manual_seed(0)
    model, schedule = Network(), SparsitySchedule(0.0, 0.6, end=4, every=2)
    by_hand = copy.deepcopy(model)
    shares = {0: 0.0, 2: 0.6 - 0.6 * 0.5**3, 4: 0.6}

    def before(step):
        if step in shares:
            mask_by_hand(by_hand, shares[step], 4)

    expected = train(by_hand, 6, before=before)
    with amanda.apply(TilewisePruning(schedule, 4)):
        losses = train(model, 6, after=lambda step: schedule.step())
    same(losses + results(model), expected + results(by_hand))


# ---- what is remembered ----------------------------------------------------------------------------------------------


def test_masks_belong_to_the_tool_until_it_is_reset():
    torch.manual_seed(0)
    model, (x,) = Network(), batches(1)
    pruning = TilewisePruning(0.5, 4)
    with amanda.apply(pruning):
        model(x)
        pruned = model(x)
    with amanda.apply(pruning):
        assert torch.equal(model(x), pruned)
        with torch.no_grad():
            model.conv.weight.mul_(100)
        first, second = model(x), model(x)
        assert torch.equal(first, second)  # still the old masks
        pruning.reset()
        assert pruning.rows() == []
        assert torch.equal(model(x), outside(model, x))  # to know the layers
        by_hand = copy.deepcopy(model)
        mask_by_hand(by_hand, 0.5, 4)
        assert torch.equal(model(x), outside(by_hand, x))


def outside(model, x):
    with amanda.disabled():
        return model(x)


def test_operators_that_come_later_are_ranked_with_the_others():
    torch.manual_seed(0)
    first, second = torch.nn.Linear(8, 8, bias=False), torch.nn.Linear(8, 8, bias=False)
    with torch.no_grad():
        second.weight.mul_(0.01)
    x, pruning = torch.randn(2, 8), TilewisePruning(0.5, 4)
    with amanda.apply(pruning):
        first(x)
        first(x)
        assert pruning.rows()[0].pruned == 32
        second(x)
        assert [row.pruned for row in pruning.rows()] == [32, 0]
        first(x)
        assert [row.pruned for row in pruning.rows()] == [0, 64]


def test_another_operator_with_a_known_weight_has_its_mask_at_once():
    torch.manual_seed(0)
    layer, x = torch.nn.Linear(8, 8, bias=False), torch.randn(3, 8)
    pruning = TilewisePruning(0.5, 4)
    with amanda.apply(pruning):
        for _ in range(2):
            expected = layer(x)
        assert torch.equal(torch.nn.functional.linear(x, layer.weight), expected)
    assert [row.pruned for row in pruning.rows()] == [32, 32]


def test_library_models_reach_the_sparsity_and_leave_amanda():
    torch.manual_seed(0)
    for make, share in [(zoo.bert, 0.5), (zoo.resnet, 0.8)]:
        model, inputs = make()
        model.eval()
        pruning = TilewisePruning(share, 16, where=lambda context: context.module_path != "pooler.dense")
        with amanda.apply(pruning):
            model(**inputs)
            pruned = model(**inputs)[0]
        assert sum(row.pruned for row in pruning.rows()) / sum(row.weights for row in pruning.rows()) == pytest.approx(
            share, abs=0.01
        )
        pruning.apply_to(model)
        assert torch.equal(model(**inputs)[0], pruned)


# ---- mistakes --------------------------------------------------------------------------------------------------------


def test_impossible_arguments_are_refused(says):
    with says(ValueError, "[pruning] sparsity is the share of weights to prune, 0 to 1; got 2"):
        TilewisePruning(2)
    with says(ValueError, "[pruning] a tile has 1 column or more, got 0"):
        TilewisePruning(tile=0)
    with says(TypeError, "[pruning] tile= is a number of columns, got 1.5"):
        TilewisePruning(tile=1.5)
    with says(ValueError, '[pruning] importance= is "magnitude" or "taylor", got \'l2\''):
        TilewisePruning(importance="l2")


def test_a_ranking_needs_operators_and_gradients(says):
    layer, pruning = torch.nn.Linear(4, 4), TilewisePruning(importance="taylor")
    nothing = "[pruning] no operator with a weight has run; run the model in a scope of the tool first"
    with says(amanda.Error, nothing):
        pruning.rank()
    with pytest.warns(UserWarning, match="nothing is pruned: taylor importance needs gradients; call rank"):
        with amanda.apply(pruning):
            layer(torch.ones(1, 4)), layer(torch.ones(1, 4))
    with pytest.raises(amanda.Error, match=r"'weight', the weight of aten::linear \(.*\), has no gradient, and taylor"):
        pruning.rank()
    with says(amanda.Error, "[pruning] there are no masks yet; call rank() after backward(), before zero_grad()"):
        pruning.apply_to(layer)


def test_a_weight_that_is_computed_is_refused():
    layer = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(4, 4))
    with pytest.raises(
        amanda.Error, match="is computed, or no parameter, and can't be read when all are ranked; leave"
    ):
        with amanda.apply(TilewisePruning()):
            layer(torch.ones(1, 4))
