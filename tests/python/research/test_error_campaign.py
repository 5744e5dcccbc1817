"""Campaign: its table against loops with forward hooks; what it leaves as it was; and what it refuses.

Equal means torch.equal, on every tensor.
"""

import collections
import contextlib
import copy
import re
import sys

import amanda
import pytest
import torch
import torch.nn.functional as F
import transformers
from amanda.reports import progress
from amanda.research.error_injection import BitFlip, Campaign, ErrorInjection, RandomValue, StuckAt, top1_changed
from scipy import stats
from terminals import ERASED, Terminal, percents, plain
from tool_regimes import REGIMES, in_regime


class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = torch.nn.Conv2d(1, 3, 3)
        self.norm = torch.nn.BatchNorm2d(3)
        self.conv2 = torch.nn.Conv2d(3, 4, 3)
        self.fc = torch.nn.Linear(16, 5)

    def forward(self, x):
        x = F.relu(self.norm(self.conv1(x)))
        return self.fc(F.relu(self.conv2(x)).flatten(1))


@pytest.fixture
def model():
    return Network().eval()


@pytest.fixture
def x():
    return torch.randn(2, 1, 6, 6)


def flipped(value, index, bit):
    value = value.clone()
    value.view(torch.int32)[index] ^= torch.tensor(1 << bit if bit < 31 else -(1 << 31), dtype=torch.int32)
    return value


def outcome_by_hooks(model, x, golden, layer, index, bit):
    """One trial as a plain program: a hook flips the bit in the layer's result."""
    hook = model.get_submodule(layer).register_forward_hook(lambda module, args, y: flipped(y, index, bit))
    try:
        with torch.no_grad():
            y = model(x)
    finally:
        hook.remove()
    if torch.equal(y, golden):
        return "identical"
    return "masked" if torch.equal(y.argmax(1), golden.argmax(1)) else "sdc"


def counts_of(outcomes):
    return {
        "trials": len(outcomes),
        "identical": outcomes.count("identical"),
        "masked": len(outcomes) - outcomes.count("sdc"),
        "sdc": outcomes.count("sdc"),
        "crash": 0,
    }


def counts_in(row):
    return {name: getattr(row, name) for name in ("trials", "identical", "masked", "sdc", "crash")}


# ---- the table -------------------------------------------------------------------------------------------------------


def test_the_table_is_that_of_loops_with_hooks(model, x):
    """Every element of every layer's result, with each of some bits: no random number on either side."""
    golden = model(x).detach()
    for bit in (2, 25, 30):
        for layer, shape in {"conv1": (2, 3, 4, 4), "conv2": (2, 4, 2, 2), "fc": (2, 5)}.items():
            indices = [tuple(index.tolist()) for index in torch.ones(shape).nonzero()[::3]]
            expected = [outcome_by_hooks(model, x, golden, layer, index, bit) for index in indices]
            campaigns = [Campaign(BitFlip(bit), modules=layer, trials=1, index=index) for index in indices]
            for campaign in campaigns:
                campaign.run(model, x)
            found = collections.Counter()
            for campaign in campaigns:
                (row,) = campaign.rows()
                assert (row.module_path, row.trials) == (layer, 1)
                found.update(counts_in(row))
            assert dict(found) == counts_of(expected), (layer, bit)


def test_random_trials_are_reported_as_they_were(model, x):
    campaign = Campaign(BitFlip(), trials=60, seed=1)
    with torch.no_grad():
        campaign.run(model, x)
    golden = model(x).detach()
    layers, bits = collections.defaultdict(list), collections.defaultdict(list)
    for trial in campaign.trials:
        (fault,) = trial.faults
        found = outcome_by_hooks(model, x, golden, trial.module_path, fault.index, fault.bit)
        assert found == ("identical" if trial.identical else trial.outcome)
        layers[trial.module_path].append(found)
        bits[f"bit {fault.bit}"].append(found)
    assert {row.name: counts_in(row) for row in campaign.rows("module")} == {
        name: counts_of(outcomes) for name, outcomes in layers.items()
    }
    assert {row.name: counts_in(row) for row in campaign.rows("bit")} == {
        name: counts_of(outcomes) for name, outcomes in bits.items()
    }
    assert [row.name for row in campaign.rows("bit")] == [f"bit {bit}" for bit in range(32) if f"bit {bit}" in bits]
    assert {len(outcomes) for outcomes in layers.values()} == {60}
    everything = [outcome for outcomes in layers.values() for outcome in outcomes]
    assert set(everything) == {"identical", "masked", "sdc"}
    assert len({trial.faults[0].index for trial in campaign.trials}) > 60


def test_a_trial_can_be_run_again(model, x):
    campaign = Campaign(RandomValue(-50, 50), trials=5, count=2)
    campaign.run(model, x)
    for trial in campaign.trials:
        again = ErrorInjection(
            RandomValue(-50, 50),
            where=lambda context, trial=trial: context.op_id == trial.op_id,
            count=2,
            seed=trial.seed,
            execution=trial.execution,
        )
        with amanda.apply(again):
            model(x)
        assert tuple(again.rows()) == trial.faults


def test_rates_and_their_intervals(model, x):
    campaign = Campaign(BitFlip(30), trials=30)
    campaign.run(model, x)
    for row in campaign.rows("op"):
        interval = stats.binomtest(row.sdc, row.trials).proportion_ci(0.95, method="wilson")
        assert (row.sdc_low, row.sdc_high) == pytest.approx((interval.low, interval.high))
        assert row.sdc_rate == row.sdc / row.trials
    assert sum(row.sdc for row in campaign.rows("op")) > 0
    frame = campaign.to_pandas("module").set_index("name")
    assert list(frame.index) == ["conv1", "conv2", "fc"]
    assert frame["sdc_rate"].tolist() == [row.sdc / 30 for row in campaign.rows("module")]
    assert campaign.table("module", sort="sdc_rate").row_count == 3


def test_the_seed_decides_and_a_reset_starts_again(model, x):
    first, same, other = (Campaign(BitFlip(), trials=10, seed=seed) for seed in (3, 3, 4))
    for campaign in (first, same, other):
        campaign.run(model, x)
    assert first.trials == same.trials != other.trials
    before = [*first.trials]
    first.run(model, x)
    assert first.trials[:30] == before != first.trials[30:]
    assert first.rows("module")[0].trials == 20
    first.reset()
    assert first.rows() == []
    first.run(model, x)
    assert first.trials == before


def test_a_terminal_shows_how_many_trials_are_done(model, x, monkeypatch):
    monkeypatch.setattr(progress, "FIRST", 0)
    found = []
    for shown in (True, False):
        terminal = Terminal()
        monkeypatch.setattr(sys, "stderr", terminal.file)
        campaign = Campaign(BitFlip(), trials=4, progress=shown)
        campaign.run(model, x)
        found.append(campaign.trials)
        text = terminal.text()
        if shown:
            assert "injecting faults: conv1 " in plain(text)
            assert percents(text)[-1] == 100
            assert "12/12" in text
            assert text.endswith(ERASED)
        else:
            assert text == ""
    assert found[0] == found[1]


# ---- outcomes --------------------------------------------------------------------------------------------------------


class Lookup(torch.nn.Module):
    def forward(self, x):
        rows = torch.eye(4)
        return rows[torch.matmul(x, torch.eye(2)).long().flatten()]


def test_an_exception_that_a_fault_causes_is_a_crash():
    campaign = Campaign(StuckAt(100.0), trials=5)
    campaign.run(Lookup(), torch.tensor([[1.0, 2.0]]))
    (row,) = campaign.rows()
    assert (row.trials, row.crash, row.crash_rate, row.sdc) == (5, 5, 1.0, 0)
    assert all(len(trial.faults) == 1 and not trial.identical for trial in campaign.trials)


def test_a_result_that_is_not_finite_is_a_crash_if_one_says_so(model, x):
    index = (0, int(model(x)[0].argmin()))
    for says, expected in [(False, "sdc"), (True, "crash")]:
        campaign = Campaign(StuckAt(float("nan")), modules="fc", trials=4, nonfinite_crashes=says, index=index)
        campaign.run(model, x)
        assert {trial.outcome for trial in campaign.trials} == {expected}


def test_what_is_a_corruption_can_be_said(model, x):
    seen = []

    def far(golden, faulty):
        seen.append((golden, faulty))
        return (golden - faulty).abs().max() > 1

    with torch.no_grad():
        model.fc.weight[0] = 0
        model.fc.bias[0] = 0
    for low, high, outcome in [(0.1, 0.9, "masked"), (20.0, 30.0, "sdc")]:
        campaign = Campaign(RandomValue(low, high), modules="fc", trials=3, sdc=far, index=(0, 0))
        campaign.run(model, x)
        assert {trial.outcome for trial in campaign.trials} == {outcome}
        assert not any(trial.identical for trial in campaign.trials)
    assert torch.equal(seen[0][0], model(x))


def test_top1_is_of_the_first_floating_point_tensor_of_any_result():
    a, b = torch.tensor([[1.0, 2.0], [3.0, 1.0]]), torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert top1_changed(a, b)
    assert not top1_changed(a, a * 2)
    assert top1_changed({"ids": torch.tensor([1]), "logits": (a, b)}, {"ids": torch.tensor([1]), "logits": (b, b)})
    assert not top1_changed([b, a], (b, b))
    loss = torch.tensor(0.5)
    assert top1_changed({"loss": loss, "logits": a}, {"loss": loss, "logits": b})


def test_a_fault_that_draws_no_element_is_masked(model, x):
    campaign = Campaign(BitFlip(), trials=3, rate=0.0)
    campaign.run(model, x)
    assert [row.identical for row in campaign.rows()] == [3, 3, 3]
    (row,) = campaign.rows("bit")
    assert row.name == "(no single bit)"


# ---- which programs --------------------------------------------------------------------------------------------------


class Loop(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = torch.nn.Linear(3, 3)

    def forward(self, x):
        for _ in range(4):
            x = self.cell(x)
        return x


def test_of_a_layer_in_a_loop_one_execution_is_hit_and_permanent_faults_hit_all():
    campaign = Campaign(StuckAt(5.0), trials=40)
    campaign.run(Loop(), torch.ones(1, 3))
    assert len(campaign.rows()) == 1
    assert {trial.execution for trial in campaign.trials} == {0, 1, 2, 3}
    assert all([fault.execution for fault in trial.faults] == [trial.execution] for trial in campaign.trials)
    campaign = Campaign(StuckAt(5.0), trials=5, at="weight", permanent=True)
    campaign.run(Loop(), torch.ones(1, 3))
    for trial in campaign.trials:
        assert trial.execution is None
        assert [fault.execution for fault in trial.faults] == [0, 1, 2, 3]
        assert len({fault.index for fault in trial.faults}) == 1


def test_layers_of_a_library_model_with_a_result_of_its_own():
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=30, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24
    )
    bert = transformers.BertForSequenceClassification(config).eval()
    campaign = Campaign(BitFlip(30), ops="linear", modules="*.output.dense", trials=3)
    campaign.run(bert, input_ids=torch.arange(8)[None])
    assert [row.name for row in campaign.rows("module")] == [
        f"bert.encoder.layer.{layer}.{part}"
        for layer in range(2)
        for part in ("attention.output.dense", "output.dense")
    ]
    assert {row.trials for row in campaign.rows()} == {3}
    assert sum(row.identical for row in campaign.rows()) < 12


def test_plain_values_of_a_result_are_compared_and_other_objects_are_not():
    def program(x):
        y = torch.matmul(x, x)
        return {"object": object(), "loss": y.sum().item(), "name": "loss", "none": None, "nan": float("nan")}

    campaign = Campaign(StuckAt(9.0), trials=3, sdc=lambda golden, faulty: faulty["loss"] > golden["loss"])
    campaign.run(program, torch.zeros(2, 2))
    (row,) = campaign.rows()
    assert (row.identical, row.sdc) == (0, 3)
    campaign = Campaign(StuckAt(0.0), trials=3, sdc=lambda golden, faulty: True)
    campaign.run(program, torch.zeros(2, 2))
    assert campaign.rows()[0].identical == 3


def test_gradients_can_be_hit_in_a_function_that_returns_them(model, x):
    def gradient():
        return torch.autograd.grad(model(x).sum(), model.conv1.weight)

    def differs(golden, faulty):
        return True

    campaign = Campaign(
        BitFlip(30), ops="conv2d", trials=4, sdc=differs, at="grad_output", backward_op="ConvolutionBackward0"
    )
    campaign.run(gradient)
    assert [(row.module_path, row.trials) for row in campaign.rows()] == [("conv2", 4), ("conv1", 4)]
    assert all(fault.backward_op == "ConvolutionBackward0" for trial in campaign.trials for fault in trial.faults)
    assert campaign.rows("op")[0].sdc > 0


@pytest.mark.parametrize("regime", REGIMES)
def test_in_every_regime_faults_and_outcomes_are_those_of_the_plain_model(model, x, regime):
    def trials_of(call):
        campaign = Campaign(BitFlip(bits), trials=12)
        campaign.run(call, x)
        paths = [trial.module_path.removeprefix("module.") for trial in campaign.trials]
        faults = [[(fault.index, fault.bit, fault.before) for fault in trial.faults] for trial in campaign.trials]
        return paths, faults, [(trial.outcome, trial.identical) for trial in campaign.trials]

    state = copy.deepcopy(model.state_dict())
    autocasts = regime == "autocast"  # values are others there
    bits = range(8, 15) if autocasts else range(24, 31)
    with torch.autocast("cpu", torch.bfloat16) if autocasts else contextlib.nullcontext():
        expected = trials_of(model)
    with in_regime(regime, model) as call:
        assert trials_of(call) == expected
    assert all(torch.equal(state[name], value) for name, value in model.state_dict().items())


def test_everything_is_left_as_it_was(x):
    model = torch.nn.Sequential(Network(), torch.nn.Dropout(0.5))
    assert model.training
    model(x).sum().backward()
    state, random = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    gradients = [parameter.grad.clone() for parameter in model.parameters()]
    campaign = Campaign(BitFlip(), trials=5)
    campaign.run(model, x)
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(state[name], value) for name, value in model.state_dict().items())
    assert all(map(torch.equal, gradients, [parameter.grad for parameter in model.parameters()]))
    assert campaign.rows("op")[0].identical > 0  # the same dropout in each run


# ---- mistakes --------------------------------------------------------------------------------------------------------


def test_wrong_options_are_refused_at_once(says):
    with says(ValueError, "[campaign] trials= is how many runs to make for each layer, 1 or more; got 0"):
        Campaign(BitFlip(), trials=0)
    with says(TypeError, "[campaign] sdc= takes a function of the results without and with faults, got 'top1'"):
        Campaign(BitFlip(), sdc="top1")
    with says(ValueError, "[error_injection] rate= is the probability of a fault per element, 0 to 1; got 2"):
        Campaign(BitFlip(), rate=2)
    with pytest.raises(TypeError, match="multiple values for keyword argument 'execution'"):
        Campaign(BitFlip(), execution=3)
    with says(ValueError, '[campaign] by= is "id", "op", "module", "line" or "bit", got \'layer\''):
        Campaign(BitFlip()).rows("layer")


def test_programs_that_cannot_be_compared_are_refused(says, model, x):
    steps = []

    def changing(x):
        steps.append(x)
        return model(x) + len(steps)

    with says(
        amanda.Error,
        "[campaign] the program has other results when it is run again without a fault, so what faults do cannot be "
        "seen; in a training function, put parameters back, or call the model alone",
    ):
        Campaign(BitFlip()).run(changing, x)
    with says(amanda.Error, "[campaign] the program ran no layer that ops=, modules= and where= select"):
        Campaign(BitFlip(), where=lambda context: False).run(model, x)
    with says(
        amanda.Error,
        "[campaign] the program's result has no scores of classes, a floating-point tensor with dimensions; pass sdc=, a "
        "function of the results without and with faults",
    ):
        Campaign(BitFlip()).run(lambda x: model(x).sum(), x)


def test_errors_that_no_fault_caused_are_the_programs(says, model, x):
    with says(amanda.Error, "[error_injection] a float32 has no bit 40: its bits are 0 to 31"):
        Campaign(BitFlip(40)).run(model, x)
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
        Campaign(BitFlip()).run(model, torch.randn(1, 1, 9, 9))


# ---- the example -----------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_the_example_finds_the_highest_bit_of_the_exponent(run_example):
    printed = run_example("fault_campaign.py")
    rows = re.findall(r"^(\d+) (sign|exponent|mantissa) +(\d+)% +(\d+)% +(\d+)% +(\d+)%$", printed, re.MULTILINE)
    assert len(rows) == 12
    places = "o" * 6 + "w" * 6  # output, weight
    shares = {(int(bit), at): [*map(int, row)] for at, (bit, _, *row) in zip(places, rows, strict=True)}
    for place in "ow":
        assert sum(shares[30, place]) > 100
        assert sum(shares[22, place]) < 20
    accuracies = [float(share) for share in re.findall(r"(\d+\.\d)%$", printed, re.MULTILINE)]
    clean, mantissa, exponent = accuracies
    assert clean > 85
    assert abs(clean - mantissa) < 1
    assert exponent < clean - 1
