"""ActivationPruning against modules that do the same: FATReLU, thresholds on magnitudes, the largest of each sample."""

import copy

import amanda
import pytest
import torch
import torch.nn.functional as F
from amanda.research.pruning import RECTIFIERS, ActivationPruning
from amanda.tools.pruning import SparsitySchedule
from equal_tensors import same
from pruned_by_hand import STEPS, Network, batches, regime_by_hand, results, train
from tool_regimes import REGIMES, in_regime

# ---- oracles ---------------------------------------------------------------------------------------------------------


class FATReLU(torch.nn.Module):
    """Zero below the threshold, with one operator of its own for both directions."""

    def __init__(self, threshold):
        super().__init__()
        self.threshold = threshold

    def forward(self, x):
        return F.threshold(x, self.threshold, 0)


class Thresholded(torch.nn.Module):
    """An activation function, and zeros where its result is small."""

    def __init__(self, function, threshold):
        super().__init__()
        self.function, self.threshold = function, threshold

    def forward(self, x):
        y = self.function(x)
        return F.hardshrink(y, self.threshold)


class Winners(torch.autograd.Function):
    """The largest magnitudes of each sample."""

    @staticmethod
    def forward(ctx, y, count):
        ctx.kept = torch.zeros(y.shape, dtype=torch.bool)
        for sample, kept in zip(y, ctx.kept, strict=True):
            kept.view(-1)[sample.flatten().abs().topk(count).indices] = True
        return torch.where(ctx.kept, y, 0)

    @staticmethod
    def backward(ctx, gradient):
        return torch.where(ctx.kept, gradient, 0), None


# ---- values and gradients --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("regime", REGIMES)
def test_training_with_a_threshold_is_that_of_a_model_with_fatrelu(regime):
    torch.manual_seed(0)
    model = Network()
    by_hand = copy.deepcopy(model)
    by_hand.activation = FATReLU(0.3)
    with regime_by_hand(regime, by_hand) as run:
        expected = train(by_hand, STEPS[regime], run=run)
    with in_regime(regime, model) as run, amanda.apply(ActivationPruning(0.3)):
        losses = train(model, STEPS[regime], run=run)
    same(losses + results(model), expected + results(by_hand))


FUNCTIONS = {
    "relu6": F.relu6,
    "nn.ReLU6": torch.nn.ReLU6(),
    "leaky_relu": F.leaky_relu,
    "elu": F.elu,
    "gelu": F.gelu,
    "gelu tanh": torch.nn.GELU("tanh"),
    "silu": F.silu,
    "mish": F.mish,
    "hardswish": F.hardswish,
}


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_other_functions_are_pruned_by_magnitude(function):
    torch.manual_seed(0)
    model = Network(function)
    by_hand = copy.deepcopy(model)
    by_hand.activation = Thresholded(function, 0.2)
    expected = train(by_hand, 5)
    with amanda.apply(ActivationPruning(0.2)):
        losses = train(model, 5)
    same(losses + results(model), expected + results(by_hand))


@pytest.mark.parametrize("in_place", [F.relu_, lambda x: F.silu(x, inplace=True), torch.nn.ReLU6(inplace=True)])
def test_functions_in_place_are_pruned_in_place(in_place):
    x = torch.randn(6, 7)
    expected = in_place(x.clone())
    expected[expected.abs() < 0.5] = 0
    with amanda.apply(ActivationPruning(0.5)):
        result = in_place(x)
    assert torch.equal(x, expected)
    assert result is x


@pytest.mark.parametrize("regime", REGIMES)
def test_the_largest_of_each_sample_stay(regime):
    torch.manual_seed(0)
    model = Network(F.silu)
    by_hand = copy.deepcopy(model)

    def winners(x):
        y = F.silu(x)
        size = y[0].numel()
        return Winners.apply(y, size - round(0.7 * size))

    by_hand.activation = winners
    with regime_by_hand(regime, by_hand) as run:
        expected = train(by_hand, 3, run=run)
    with in_regime(regime, model) as run, amanda.apply(ActivationPruning(sparsity={"silu": 0.7})):
        losses = train(model, 3, run=run)
    same(losses + results(model), expected + results(by_hand))


@pytest.mark.parametrize("shape", [(), (10,), (0, 4), (3, 0)])
def test_a_vector_is_one_sample(shape):
    x = torch.rand(shape) + 1
    pruning = ActivationPruning(sparsity=0.5)
    with amanda.apply(pruning):
        found = torch.relu(x)
    kept = (found != 0).sum().item()
    assert kept == {(): 1, (10,): 5}.get(shape, 0)
    assert pruning.rows()[0].elements == x.numel()


def test_thresholds_of_operators_and_a_place_alone():
    x = torch.tensor([-2.0, -0.3, 0.05, 0.3, 2.0])
    with amanda.apply(ActivationPruning({"relu": 0.1, "tanh": 0.5})):
        assert torch.relu(x).tolist() == torch.tensor([0, 0, 0, 0.3, 2.0]).tolist()
        assert torch.equal(torch.tanh(x), torch.where(x.abs() > 1, x.tanh(), 0))
        assert torch.equal(F.silu(x), x * torch.sigmoid(x))
    model = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Linear(5, 5), torch.nn.ReLU())
    pruning = ActivationPruning(0.1, where=lambda context: context.module_path == "2")
    with amanda.apply(pruning):
        model(x)
    assert [row.module_path for row in pruning.rows()] == ["2"]


def test_what_is_at_the_threshold_stays_and_nans_do():
    x = torch.tensor([0.5, 0.4999, float("nan"), float("inf"), -1])
    with amanda.apply(ActivationPruning(0.5)):
        assert (
            torch.relu(x).nan_to_num(nan=7).tolist() == torch.tensor([0.5, 0, 7, float("inf"), 0]).nan_to_num().tolist()
        )


def test_nothing_to_prune_changes_nothing():
    torch.manual_seed(0)
    model = Network(F.gelu)
    other = copy.deepcopy(model)
    expected = train(other, 3)
    with amanda.apply(ActivationPruning(0), ActivationPruning(sparsity=0.0)):
        losses = train(model, 3)
    same(losses + results(model), expected + results(other))


def test_a_schedule_raises_the_sparsity():
    schedule = SparsitySchedule(0, 1, end=2, every=1)
    x = torch.rand(3, 40) + 1
    with amanda.apply(ActivationPruning(sparsity=schedule)):
        zeros = []
        for _ in range(3):
            zeros.append((torch.relu(x) == 0).sum(1).tolist())
            schedule.step()
    assert zeros == [[0] * 3, [35] * 3, [40] * 3]


def test_under_vmap_each_sample_of_the_function_is_a_tensor():
    x = torch.randn(4, 3, 6)
    with amanda.apply(ActivationPruning(0.5)):
        found = torch.vmap(torch.relu)(x)
    assert torch.equal(found, F.threshold(x, 0.5, 0))


# ---- results ---------------------------------------------------------------------------------------------------------


def test_rows_count_what_is_zero():
    torch.manual_seed(0)
    model, (x,) = Network(), batches(1)
    pruning = ActivationPruning(0.2)
    seen = []
    model.activation = lambda y: seen.append(F.relu(y)) or seen[-1]
    with amanda.apply(pruning), amanda.apply(ActivationPruning(0.0)):
        model(x)
    dense = []
    model.activation = lambda y: dense.append(F.threshold(F.relu(y), 0.2, 0)) or dense[-1]
    model(x)
    same(seen, dense)
    rows = pruning.rows()
    assert [(row.calls, row.elements, row.zeros) for row in rows] == [
        (1, y.numel(), int((y == 0).sum())) for y in dense
    ]
    assert sum(row.sparsity * row.elements for row in rows) == pytest.approx(pruning.rows("op")[0].zeros)
    before = pruning.rows("op")[0]
    with amanda.apply(pruning):
        torch.relu(torch.tensor([0.0, 0.1, 0.5, 1]))
    after = pruning.rows("op")[0]
    assert (after.elements - before.elements, after.zeros - before.zeros, after.pruned - before.pruned) == (4, 2, 1)


def test_sparse_results_are_left_unchanged_and_counted():
    x, pruning = torch.eye(3).to_sparse(), ActivationPruning(2.0)
    with amanda.apply(pruning):
        assert torch.equal(torch.relu(x).to_dense(), torch.eye(3))
        assert torch.relu(torch.ones(2, dtype=torch.long)).tolist() == [1, 1]
    assert pruning.skipped == {"sparse": 1}
    assert pruning.rows() == []


# ---- mistakes --------------------------------------------------------------------------------------------------------


def test_impossible_arguments_are_refused(says):
    takes = "[pruning] ActivationPruning takes a threshold or a sparsity: threshold=0.1 or sparsity=0.9; got "
    with says(TypeError, takes + "threshold=None, sparsity=None"):
        ActivationPruning()
    with says(TypeError, takes + "threshold=1, sparsity=0.5"):
        ActivationPruning(1, sparsity=0.5)
    for threshold in (-0.1, float("nan"), "small"):
        with says(ValueError, f"[pruning] a threshold is a magnitude, 0 or more; got {threshold!r}"):
            ActivationPruning(threshold)
        with says(ValueError, f"[pruning] a threshold is a magnitude, 0 or more; got {threshold!r}"):
            ActivationPruning({"relu": 1, "silu": threshold})
    with says(ValueError, "[pruning] sparsity is the share of activations to prune, 0 to 1; got 1.5"):
        ActivationPruning(sparsity={"relu": 1.5})
    with says(ValueError, "[tool] ActivationPruning: no operator 'RELU'; did you mean 'relu'?"):
        ActivationPruning({"RELU": 1})


def test_a_where_that_selects_nothing_is_told():
    tool = ActivationPruning(0.1, where=lambda context: context.module_path == "relu1")
    model = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Sequential(torch.nn.ReLU()))
    text = (
        r"\[pruning\] where= of tool 'ActivationPruning' selected none of the operators that ran; it was asked for those "
        r"with module_path '0', '1\.0'$"
    )
    with pytest.warns(amanda.UnmatchedFilterWarning, match=text) as caught, amanda.apply(tool):
        model(torch.ones(2))
    assert caught[0].filename == __file__


def test_rectifiers_are_operators_of_activation():
    assert set(RECTIFIERS) - set(amanda.ops.activation) == set()
