"""SparsitySchedule against the closed form and torch's CubicSL; pruners that follow it against torch's prune."""

import copy
import re

import amanda
import pytest
import torch
import torch.nn.functional as F
from amanda.tools.pruning import MagnitudePruning, SparsitySchedule, WeightPruning
from equal_tensors import same
from pruned_by_hand import LAYERS, STEPS, Network, dense, layers, mask_by_torch, regime_by_hand, results, train
from tool_regimes import REGIMES, in_regime
from torch.ao.pruning import CubicSL
from torch.nn.utils import prune


def sparsities(schedule, steps):
    found = [schedule.sparsity]
    for _ in range(steps):
        schedule.step()
        found.append(schedule.sparsity)
    return found


@pytest.mark.parametrize(
    ("initial", "final", "begin", "every", "times"), [(0, 0.9, 0, 100, 10), (0.2, 0.8, 7, 3, 5), (0.5, 0.5, 2, 1, 9)]
)
def test_values_are_those_of_torchs_cubic_scheduler_and_hold_between_changes(initial, final, begin, every, times):
    end = begin + every * times
    schedule = SparsitySchedule(initial, final, begin=begin, end=end, every=every)
    for step, found in enumerate(sparsities(schedule, end + 2 * every)):
        changed = min(begin + (step - begin) // every * every, end)
        assert found == CubicSL.sparsity_compute_fn(initial, final, changed, begin, every, times, initially_zero=True)


def test_a_sparsity_may_fall():
    assert sparsities(SparsitySchedule(0.9, 0.1, end=4, every=2), 4) == pytest.approx([0.9, 0.9, 0.2, 0.2, 0.1])


def test_a_last_change_is_at_the_end_even_if_the_interval_does_not_divide():
    schedule = SparsitySchedule(final=0.5, end=10, every=4)
    found = sparsities(schedule, 12)
    assert found[8] == found[9] == 0.5 * (1 - 0.2**3)
    assert found[10:] == [0.5] * 3
    assert schedule.steps == 12


def test_it_goes_on_from_a_checkpoint():
    schedule, other = SparsitySchedule(end=10, every=1), SparsitySchedule(end=10, every=1)
    sparsities(schedule, 4)
    other.load_state_dict(schedule.state_dict())
    assert (other.steps, other.sparsity) == (4, schedule.sparsity)


def l1_masks(model, share, names=LAYERS):
    """Masks of the dense weights as they are, by torch's prune."""
    for name, layer in layers(model).items():
        if name in names:
            weight = dense(layer)
            module = torch.nn.Linear(1, 1)
            module.weight = torch.nn.Parameter(weight.clone())
            prune.l1_unstructured(module, "weight", amount=share)
            mask_by_torch(layer, module.weight_mask)


@pytest.mark.parametrize("regime", REGIMES)
def test_gradual_pruning_trains_as_torchs_prune_with_masks_made_at_each_change(regime):
    torch.manual_seed(0)
    model, share = Network(), [0.7 + (0.1 - 0.7) * (1 - (t - 4) / 12) ** 3 for t in (4, 8, 12, 16)]
    by_hand = copy.deepcopy(model)

    def before(step):
        if step % 4 == 0:
            l1_masks(by_hand, [0.0, *share][min(step, 16) // 4])

    with regime_by_hand(regime, by_hand) as run:
        expected = train(by_hand, STEPS[regime], run=run, before=before)
    schedule = SparsitySchedule(0.1, 0.7, begin=4, end=16, every=4)
    with in_regime(regime, model) as run, amanda.apply(MagnitudePruning(schedule)):
        losses = train(model, STEPS[regime], run=run, after=lambda step: schedule.step())
    same(losses + results(model), expected + results(by_hand))


def test_only_steps_of_the_schedule_count():
    schedule = SparsitySchedule(0, 1, end=2, every=1)
    layer, x = torch.nn.Linear(8, 8), torch.randn(4, 8)
    pruning = MagnitudePruning(schedule)
    with amanda.apply(pruning):
        for _ in range(3):
            layer(x).sum().backward()  # accumulated
        assert pruning.rows()[0].pruned == 0
        schedule.step()
        assert pruning.rows()[0].pruned == 0  # not before it runs
        layer(x)
        assert pruning.rows()[0].pruned == round(64 * 0.875)
        schedule.step()
        assert torch.equal(layer(x), layer.bias.expand(4, 8))


def test_one_schedule_serves_several_tools_and_scopes():
    schedule = SparsitySchedule(0.25, 0.75, end=1, every=1)
    first, second = (MagnitudePruning(schedule, ops=ops) for ops in ("linear", "conv2d"))
    layer, x, image = torch.nn.Linear(8, 8), torch.randn(4, 8), torch.randn(1, 1, 5, 5)
    conv = torch.nn.Conv2d(1, 4, 2)
    with amanda.apply(first, second):
        layer(x), conv(image)
        schedule.step()
    with amanda.apply(first), amanda.apply(second):
        layer(x), conv(image)
    assert [tool.rows("op")[0].sparsity for tool in (first, second)] == [0.75, 0.75]


def test_a_tool_of_ones_own_finds_it_in_the_context():
    class Rows(WeightPruning):
        """Prunes the first rows."""

        def __init__(self, schedule):
            super().__init__()
            self.depends_on(schedule)
            self.sparsity = schedule

        def _analyze(self, context):
            assert context["schedule"] is schedule
            super()._analyze(context)

        def get_mask(self, weight, dim):
            mask = torch.ones_like(weight)
            mask[: round(self.sparsity.sparsity * len(weight))] = 0
            return mask

    schedule = SparsitySchedule(0.25, 0.5, end=1, every=1)
    layer, x = torch.nn.Linear(4, 4, bias=False), torch.randn(2, 4)
    with amanda.apply(Rows(schedule)):
        assert torch.equal(layer(x)[:, 1:], F.linear(x, layer.weight)[:, 1:])
        assert layer(x)[:, 0].eq(0).all()
        schedule.step()
        assert layer(x)[:, :2].eq(0).all()


def test_a_schedule_of_impossible_numbers_is_refused(says):
    for initial, final, name, value in [(-0.1, 0.5, "initial", -0.1), (0, 1.5, "final", 1.5), (0, "1", "final", "1")]:
        with says(ValueError, f"[pruning] {name} is the share of weights to prune, 0 to 1; got {value!r}"):
            SparsitySchedule(initial, final)
    for numbers in [(-1, 5, 1), (5, 5, 1), (0, 5, 0)]:
        begin, end, every = numbers
        with says(
            ValueError,
            "[pruning] a schedule begins at a step from 0 on, ends after it, and changes every 1 or more steps; got "
            f"begin={begin}, end={end}, every={every}",
        ):
            SparsitySchedule(begin=begin, end=end, every=every)
    with pytest.raises(TypeError, match="float"):
        SparsitySchedule(end=1e3)


# ---- the example -----------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_the_examples_network_keeps_its_accuracy_and_leaves_amanda(run_example):
    printed = run_example("gradual_pruning.py")
    found = re.findall(r"^(\w[\w ]*\w) +(\d+\.\d)%$", printed, flags=re.MULTILINE)
    dense, at_once, gradually, without = (float(share) for _, share in found)
    assert [name for name, _ in found] == ["dense", "pruned at once", "pruned gradually", "without Amanda"]
    assert dense > 90
    assert at_once < dense - 20
    assert gradually > dense - 8
    assert without == gradually
    assert "outputs are equal, bit for bit" in printed
    assert "4769 of 5960 weights are zero" in printed
