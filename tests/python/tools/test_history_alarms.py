"""Alarms of History: planted faults are named, with place and first step, and nothing else; healthy runs have none."""

import dataclasses
import math
import statistics
import warnings

import amanda
import pyarrow.parquet
import pytest
import torch
import zoo
from amanda.tools.history import History, HistoryWarning, Limits
from torch import nn


def run(model, loss_of, *, lr=0.01, steps=30, limits=None, schedule=None, on_alarm=None):
    """The alarms of a training run."""
    alarms = []
    history = History(model, limits=limits or Limits(), on_alarm=on_alarm or alarms.append)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    with amanda.scheduled(history, schedule=schedule, steps=optimizer):
        for step in range(steps):
            optimizer.zero_grad()
            loss = loss_of(model, step)
            history.log(loss=loss)
            loss.backward()
            optimizer.step()
    assert on_alarm or alarms == history.alarms
    return history.alarms


def regression(model, step):
    x = torch.randn(32, 8)
    return (model(x) - x[:, :1]).square().mean()


def layers(*, depth=1, activation=nn.ReLU, width=16):
    torch.manual_seed(0)
    made = [nn.Linear(8, width), activation()]
    for _ in range(depth - 1):
        made += [nn.Linear(width, width), activation()]
    return nn.Sequential(*made, nn.Linear(width, 1))


def found(alarms):
    return [(alarm.kind, alarm.subject, alarm.began, alarm.step) for alarm in alarms]


@pytest.mark.parametrize("depth", [1, 3])
def test_a_healthy_run_has_none(depth):
    model = layers(depth=depth)
    with torch.no_grad():
        for layer in model[:-1:2]:
            layer.bias.fill_(0.5)  # a few units of so narrow a network would be dead from the beginning
    assert run(model, regression, steps=60) == []


@pytest.mark.parametrize("name", ["bert", "gpt2", "resnet", "convnext"])
@pytest.mark.filterwarnings("ignore")
def test_well_known_models_have_none(name):
    torch.manual_seed(0)
    model, inputs = getattr(zoo, name)()
    assert run(model, lambda model, _: model(**inputs)[0].float().square().mean(), lr=1e-4, steps=8) == []


@pytest.mark.filterwarnings("ignore")
def test_routers_of_a_single_expert_are_not_trained():
    """Mixtral divides the weights of a token's experts by their sum: one expert has 1, whatever the router says."""
    torch.manual_seed(0)
    model, inputs = zoo.mixtral()
    assert model.config.num_experts_per_tok == 1
    alarms = run(model, lambda model, _: model(**inputs).loss, lr=1e-4, steps=4)
    routers = [f"model.layers.{layer}.mlp.gate.weight" for layer in (1, 0)]
    assert found(alarms) == [("vanishing gradient", router, 0, 2) for router in routers]


def test_a_model_without_relus_is_nothing_to_warn_of():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert run(layers(activation=nn.Tanh), regression, steps=3) == []


def test_dead_units_are_named_with_their_place():
    model = layers(depth=2)
    with torch.no_grad():
        model[2].bias[[3, 11]] = -100
    schedule = amanda.Schedule(wait=1, active=1)
    (alarm,) = run(model, regression, limits=Limits(dead=10), schedule=schedule)
    assert (alarm.kind, alarm.units, alarm.began, alarm.step) == ("dead units", (3, 11), 1, 19)
    assert (alarm.name, alarm.module_path) == ("aten::relu", "3")
    assert alarm.source.endswith(f"test_history_alarms.py:{regression.__code__.co_firstlineno + 2}")
    assert str(alarm) == (
        "dead units since step 1: 2 of 16 units of dimension 1 were zero for all samples: 3, 11; aten::relu in 3 "
        f"({alarm.source})"
    )


def test_units_that_die_later_are_told_later():
    model = layers()

    def dying(model, step):
        if step in (4, 9):
            with torch.no_grad():
                model[0].bias[step] = -100
        return regression(model, step)

    alarms = run(model, dying, limits=Limits(dead=5))
    assert [(alarm.units, alarm.began, alarm.step) for alarm in alarms] == [((4,), 4, 8), ((9,), 9, 13)]


def test_a_unit_that_is_alive_for_one_sample_is_not_dead():
    def one_sample(model, step):
        x = torch.full((32, 8), -1.0)
        x[7] = 1
        return model(x).square().mean()

    model = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 1))
    with torch.no_grad():
        model[0].weight.fill_(1.0)
        model[0].bias.zero_()
    assert run(model, one_sample, lr=1e-5, limits=Limits(dead=2)) == []


@pytest.mark.parametrize(
    ("make", "shape", "dimension"),
    [
        (lambda: nn.Conv2d(2, 5, 3), (4, 2, 9, 9), 1),
        (lambda: nn.Conv1d(2, 5, 3), (4, 2, 9), 1),
        (lambda: nn.Linear(2, 5), (4, 9, 2), 2),
        (lambda: nn.Linear(2, 5), (2,), 0),
    ],
)
def test_units_are_channels(make, shape, dimension):
    torch.manual_seed(0)
    model = nn.Sequential(make(), nn.ReLU())
    with torch.no_grad():
        model[0].bias.fill_(100.0)[2] = -100
    # Sequences of other lengths: positions are no units.
    sizes = [shape, (*shape[:1], 7, *shape[2:]) if dimension == 2 else shape]
    (alarm,) = run(model, lambda model, step: model(torch.randn(sizes[step % 2])).mean(), limits=Limits(dead=3))
    assert (alarm.units, alarm.text.partition(" were")[0]) == ((2,), f"1 of 5 units of dimension {dimension}")


def test_a_learning_rate_that_diverges_is_named():
    """The loss is (w - w0)^2, on average over samples: with this rate the error of w is -2 times the last one's."""
    torch.manual_seed(0)
    losses = []

    def observed(model, step):
        loss = regression(model, step)
        losses.append(loss.item())
        return loss

    alarms = run(nn.Linear(8, 1), observed, lr=1.5, steps=20)
    by_subject = {alarm.subject: alarm for alarm in alarms}
    assert by_subject.keys() == {"loss", "gradient_norm"}
    assert {alarm.kind for alarm in alarms} == {"divergence"}
    first = next(step for step in range(5, 20) if losses[step] > 10 * statistics.median(losses[:step]))
    assert by_subject["loss"].began == first
    assert not found(run(nn.Linear(8, 1), regression, lr=0.1, steps=20))


def test_divergence_begins_where_it_is_planted():
    """Loss 1 for 12 steps, then it grows by half in each: 10 times the median from step 18 on (1.5 ** 6 = 11.4)."""
    model = nn.Linear(1, 1, bias=False)

    def planted(model, step):
        return model(torch.zeros(1, 1)).sum() + (1.0 if step < 12 else 1.5 ** (step - 12))

    (alarm,) = run(model, planted)
    assert found([alarm]) == [("divergence", "loss", 18, 20)]
    assert alarm.value == pytest.approx(1.5**8)
    assert 9 < alarm.limit < 11
    assert alarm.text == "loss is 25.63, and its median was 1"
    assert str(alarm) == "divergence since step 18: loss is 25.63, and its median was 1"


def test_a_spike_is_no_divergence_and_what_comes_back_soon_is_told_once():
    model = nn.Linear(1, 1)

    def planted(model, step):
        high = step == 10 or step in (20, 21, 22, 23) or step in (30, 31, 32) or step in (50, 51, 52)
        return model(torch.zeros(1, 1)).sum() * 0 + (100.0 if high else 1.0)

    alarms = run(model, planted, steps=60, limits=Limits(window=12))
    assert found(alarms) == [("divergence", "loss", 20, 22), ("divergence", "loss", 50, 52)]


def test_a_loss_may_be_negative_or_zero():
    def log_likelihood(model, step):
        return model(torch.zeros(1, 1)).sum() * 0 - 5 + (step > 9) * 40  # from -5 to 35: 9 times 5 would be 40

    def hinge(model, step):
        return model(torch.zeros(1, 1)).sum() * 0 + (step > 9) * 1e-6

    assert run(nn.Linear(1, 1), log_likelihood) == run(nn.Linear(1, 1), hinge) == []
    (alarm,) = run(nn.Linear(1, 1), lambda model, step: log_likelihood(model, step) + (step > 12) * 10)
    assert (alarm.began, alarm.limit) == (13, 40)


def test_a_loss_that_is_not_finite_is_told_at_once():
    def planted(model, step):
        return model(torch.zeros(1, 1)).sum() + (math.inf if step == 3 else 0.0)

    alarms = run(nn.Linear(1, 1), planted, steps=6)
    assert found(alarms) == [("nonfinite", "loss", 3, 3)]
    assert alarms[0].text == "loss is inf"


def test_the_first_operator_with_nans_is_named():
    class Root(nn.Module):
        def forward(self, x):
            return x.sqrt()

    model = nn.Sequential(nn.Linear(2, 2), Root(), nn.Linear(2, 1))
    with torch.no_grad():
        model[0].bias.fill_(5.0)

    def planted(model, step):
        if step == 4:
            with torch.no_grad():
                model[0].bias.fill_(-5.0)
        return model(torch.ones(3, 2)).sum()

    alarms = run(model, planted, lr=1e-4, steps=8)
    forward, loss, backward = alarms
    assert found([forward, loss]) == [("nonfinite", "1 sqrt", 4, 4), ("nonfinite", "loss", 4, 4)]
    assert (forward.name, forward.module_path) == ("aten::sqrt", "1")
    assert found([backward]) == [("nonfinite", "2.weight", 4, 6)]  # a gradient must be so for three steps
    assert backward.text == "the gradient of 2.weight is not finite, and is the first that the backward pass reaches"


@pytest.fixture
def nans_in_new_memory():
    """torch.empty fills its result with NaNs."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("nans_in_new_memory")
def test_memory_that_nothing_was_written_to_is_no_alarm():
    """As where a model is made inside the scope: its parameters are detached before they are filled."""
    alarms = []
    with amanda.scheduled(History(on_alarm=alarms.append)) as scope:
        model = nn.Linear(4, 2)
        model(torch.ones(3, 4)).sum().backward()
        scope.step()
        assert alarms == []
        model(torch.full((12,), math.nan).view(3, 4).relu())
        scope.step()
    assert found(alarms) == [("nonfinite", "full", 1, 1)]


def test_vanishing_gradients_are_those_below_the_limit():
    model = layers(depth=5, activation=nn.Tanh)
    with torch.no_grad():
        for layer in model[:-1:2]:
            layer.weight.mul_(1e-2)
    names, sizes = [name for name, _ in model.named_parameters()], {}

    def observed(model, step):
        loss = regression(model, step)
        if step == 2:
            gradients = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
            for name, gradient in zip(names, gradients, strict=True):
                sizes[name] = gradient.double().square().mean().sqrt().item()
        return loss

    alarms = run(model, observed, lr=1e-6, steps=5)
    weights = [name for name in names if name.endswith("weight") and sizes[name] < 1e-7 * sizes["10.weight"]]
    assert 1 <= len(weights) < 5
    assert sorted(found(alarms)) == [("vanishing gradient", name, 0, 2) for name in sorted(weights)]
    for alarm in alarms:
        assert (alarm.name, alarm.module_path) == ("aten::linear", alarm.subject.partition(".")[0])
        assert alarm.value == pytest.approx(sizes[alarm.subject] / sizes["10.weight"], rel=1e-4)


def test_exploding_gradients_are_named():
    model = layers(depth=5, activation=nn.Identity)
    with torch.no_grad():
        for layer in model[2::2]:
            layer.weight.mul_(100)
        for layer in model[::2]:
            layer.bias.zero_()
        model[0].weight.mul_(1e-6)  # so that the results are small
    alarms = run(model, regression, lr=1e-20, steps=3)
    assert {(alarm.kind, alarm.began) for alarm in alarms} == {("exploding gradient", 0)}
    assert [alarm.subject for alarm in alarms] == sorted((alarm.subject for alarm in alarms), reverse=True)
    assert alarms[-1].subject == "0.weight"
    assert alarms[-1].text.endswith(" of that of 10.weight, more than 10000")


def test_one_warning_has_the_alarms_of_a_step():
    model = layers(depth=2)
    with torch.no_grad():
        model[0].bias.fill_(-100)
        model[2].bias[:2] = -100
        model[2].bias[2:] = 1
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        history = History(model, limits=Limits(dead=4, vanishing=0))
        with amanda.scheduled(history) as scope:
            for step in range(6):
                regression(model, step).backward()
                scope.step()
    (warning,) = caught
    assert (warning.category, warning.filename) == (HistoryWarning, __file__)
    first, second = str(warning.message).split("\n  ")
    assert first.startswith(
        "[history] dead units since step 0: all 16 units of dimension 1 were zero for all samples: "
        "0, 1, 2, 3, 4, 5, 6, 7 and 8 more; aten::relu in 1 ("
    )
    assert second.startswith("dead units since step 0: 2 of 16 units of dimension 1 were zero for all samples: 0, 1; ")
    assert "alarm: dead units since step 0" in history.table().caption.plain.replace("\n", " ")


def test_an_alarm_may_end_the_training():
    def stop(alarm):
        raise KeyboardInterrupt if alarm.kind != "nonfinite" else ArithmeticError(str(alarm))

    model = nn.Linear(1, 1)
    with pytest.raises(
        ArithmeticError, match="nonfinite since step 2: mul has NaNs, and is the first operator that has"
    ):
        run(model, lambda model, step: model(torch.ones(1, 1)).sum() * (math.nan if step == 2 else 1), on_alarm=stop)


def test_without_limits_there_are_none():
    history = History(limits=None)
    with amanda.scheduled(history) as scope:
        history.log(loss=math.nan)
        scope.step()
    assert math.isnan(history.rows()[-1].value)
    assert history.alarms == []


def test_alarms_are_in_the_files(tmp_path):
    model = layers()
    with torch.no_grad():
        model[0].bias[3] = -100
    history = History(model, limits=Limits(dead=2), parquet=tmp_path, on_alarm=lambda alarm: None)
    with amanda.scheduled(history) as scope:
        for step in range(3):
            regression(model, step)
            scope.step()
    (alarm,) = history.alarms
    (row,) = pyarrow.parquet.read_table(tmp_path / "alarms").drop_columns(["host", "rank"]).to_pylist()
    assert {**row, "units": tuple(row["units"])} == dataclasses.asdict(alarm)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"patience": 0}, "patience= is a number of steps, 1 or more, got 0"),
        ({"window": 2}, "window= is a number of steps, 5 or more, got 2"),
        ({"dead": 1.5}, "dead= is a number of steps, 1 or more, got 1.5"),
        ({"growth": 1}, "growth= is a factor greater than 1, got 1"),
        ({"vanishing": 1}, "vanishing= is a fraction, 0 or more and less than 1, got 1"),
    ],
)
def test_limits_that_mean_nothing_are_refused(says, options, text):
    with says(ValueError, f"[history] {text}"):
        Limits(**options)
