"""History: its series against a plain training loop, and that it changes nothing. Its files: test_history_files.py."""

import math
import re
import sys

import amanda
import pytest
import torch
from amanda.tools.flops import Flops
from amanda.tools.gradients import GradientStatistics
from amanda.tools.history import History, HistoryWarning
from amanda.tools.statistics import OpStatistics
from history_runs import made, step_of, trained, values
from repository import ROOT
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.RMSprop])
def test_norms_of_weights_updates_and_gradients_are_those_of_a_plain_loop(kind):
    model, optimizer = made(kind, lr=0.05)
    history = History(model, limits=None)
    with amanda.scheduled(history, schedule=amanda.Schedule(every=3)) as run:
        for _ in range(8):
            loss = step_of(model, optimizer)
            history.log(loss=loss)
            run.step()
    model, optimizer = made(kind, lr=0.05)
    expected = {}
    for step in range(8):
        before = {name: parameter.detach().double() for name, parameter in model.named_parameters()}
        loss = model(torch.randn(16, 4)).square().mean()
        loss.backward()
        gradients = {name: parameter.grad.double().norm().item() for name, parameter in model.named_parameters()}
        optimizer.step()
        optimizer.zero_grad()
        if step % 3 == 0:
            for name, parameter in model.named_parameters():
                update = (parameter.detach().double() - before[name]).norm().item()
                norm = before[name].norm().item()
                found = {"norm": norm, "update_norm": update, "update_ratio": update / norm}
                norms = dict.fromkeys(("gradient_norm", "optimizer_gradient_norm"), gradients[name])
                for quantity, value in {**found, **norms}.items():
                    expected.setdefault(("parameters", name, quantity), {})[step] = value
            expected.setdefault(("scalars", "loss", "value"), {})[step] = loss.item()
            total = math.sqrt(sum(norm**2 for norm in gradients.values()))
            for name in ("gradient_norm", "optimizer_gradient_norm"):
                expected.setdefault(("scalars", name, "value"), {})[step] = total
    series = {(row.tool, row.name, row.quantity) for row in history.rows() if row.tool in ("parameters", "scalars")}
    assert series == expected.keys()
    for key, points in expected.items():
        assert values(history, *key) == pytest.approx(points, rel=1e-6), key


def test_an_update_of_sgd_is_the_learning_rate_times_the_gradient():
    model, optimizer = made(lr=0.25)
    history = History(optimizer, limits=None)  # parameters by the optimizer, named by the model
    trained(history, model, optimizer, steps=3)
    for name, _ in model.named_parameters():
        gradients, updates = (values(history, "parameters", name, f"{what}_norm") for what in ("gradient", "update"))
        assert len(updates) == 3
        assert updates == pytest.approx({step: 0.25 * norm for step, norm in gradients.items()}, rel=1e-5)


def test_figures_of_operators_are_those_of_one_step_each():
    model, optimizer = made(lr=0.1)
    history = History(limits=None)
    outputs, gradients = {}, {}
    with amanda.scheduled(history, schedule=amanda.Schedule(wait=1, active=1)) as run:
        for step in range(6):
            x = torch.randn(16, 4)
            hidden = torch.relu(model.drop(model.body(x)))
            hidden.retain_grad()
            model.head(hidden).square().mean().backward()
            outputs[step], gradients[step] = hidden.detach().double(), hidden.grad.double()
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
            run.step()
    figures = {
        "mean": torch.mean,
        "std": lambda values: values.std(correction=0),
        "min": torch.min,
        "max": torch.max,
        "norm": torch.norm,
        "sparsity": lambda values: (values == 0).double().mean(),
    }
    for quantity, function in figures.items():
        expected = {step: function(outputs[step]).item() for step in (1, 3, 5)}
        assert values(history, "statistics", "aten::relu", quantity) == pytest.approx(expected, rel=1e-9)
    expected = {step: gradients[step].norm().item() for step in (1, 3, 5)}
    assert values(history, "gradients", "aten::relu", "norm") == pytest.approx(expected, rel=1e-9)
    names = {row.name for row in history.rows()}
    assert "aten::linear" in names
    assert not {name for name in names if "foreach" in name or "add_" in name or "zero_" in name}  # of the optimizer


def test_a_gradient_over_several_passes_is_the_mean_of_their_norms():
    layer = nn.Linear(2, 1, bias=False)
    history = History(layer, limits=None)
    with amanda.scheduled(history) as run:
        for scale in (1.0, 3.0):
            layer(torch.tensor([[3.0, 4.0]]) * scale).sum().backward()
            history.log(loss=scale)
        run.step()
    assert values(history, "parameters", "weight", "gradient_norm") == {0: 10.0}
    assert values(history, "scalars", "loss", "value") == {0: 2.0}


@pytest.mark.parametrize("watches", ["modules", "optimizers", "nothing"])
def test_two_models_with_the_same_names_have_series_of_their_own(watches):
    torch.manual_seed(0)
    models = [nn.Sequential(nn.Linear(3, 3, bias=False)) for _ in range(2)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=lr) for model, lr in zip(models, (0.5, 0.25), strict=True)]
    watched = {"modules": models, "optimizers": optimizers, "nothing": []}[watches]
    history = History(limits=None)
    for each in [*watched, *watched]:
        history.watch(each)
    with amanda.scheduled(history) as run:
        models[1](models[0](torch.ones(2, 3)).detach()).sum().backward()  # the second one's gradient comes first
        models[0](torch.ones(2, 3)).sum().backward()
        gradients = [model[0].weight.grad.norm().item() for model in models]
        for optimizer in optimizers:
            optimizer.step()
        run.step()
    names = ["0.weight", "0.weight #2"]
    if watches == "nothing":
        names.reverse()
    assert {row.name for row in history.rows() if row.tool == "parameters"} == set(names)
    for name, gradient, lr in zip(names, gradients, (0.5, 0.25), strict=True):
        assert values(history, "parameters", name, "gradient_norm") == pytest.approx({0: gradient}), name
        if watches != "nothing":
            assert values(history, "parameters", name, "update_norm") == pytest.approx({0: lr * gradient}), name


def test_of_other_tools_all_numbers_are_kept():
    model, optimizer = made(lr=0.1)
    flops = Flops()
    history = History(tools=[flops], limits=None)
    trained(history, model, optimizer, steps=2)
    assert values(history, "flops", "aten::linear", "flops") == {} != {row.name for row in history.rows()}
    total = {
        step: sum(row.value for row in history.rows("step") if (row.quantity, row.step) == ("flops", step))
        for step in (0, 1)
    }
    assert total == {0: 16 * (4 * 8 * 2 + 8 * 3) * 2, 1: 16 * (4 * 8 * 2 + 8 * 3) * 2}
    assert flops.total == 0  # it was reset


# ---- it changes nothing ----------------------------------------------------------------------------------------------


def test_training_is_the_same_to_the_last_bit(tmp_path):
    def run(observed):
        model, optimizer = made(torch.optim.AdamW, lr=0.01)
        if observed:
            history = History(model, parquet=tmp_path, tensorboard=tmp_path)
            trained(history, model, optimizer, schedule=amanda.Schedule(every=2))
        else:
            for _ in range(8):
                step_of(model, optimizer)
        state = [value for each in optimizer.state.values() for value in each.values()]
        return [*model.parameters(), *state, torch.get_rng_state()]

    assert all(map(torch.equal, run(True), run(False)))


def test_memory_is_bounded_and_nothing_is_kept_alive():
    model, optimizer = made(lr=0.1)
    history = History(model, keep=3, limits=None)
    trained(history, model, optimizer)
    assert {row.step for row in history.rows("step")} == {5, 6, 7}
    assert not history._updates._before
    history.reset()
    assert history.rows() == []


# ---- steps and mistakes ----------------------------------------------------------------------------------------------


def test_steps_may_be_those_of_any_optimizer():
    model, optimizer = made(lr=0.1)
    history = History(limits=None)
    with amanda.scheduled(history, schedule=amanda.Schedule(every=2), steps=register_optimizer_step_post_hook):
        for number in range(5):
            if number == 1:
                history.watch(optimizer)
            step_of(model, optimizer)
    assert sorted(values(history, "parameters", "head.weight", "update_norm")) == [2, 4]  # it was off in step 1
    assert sorted(values(history, "parameters", "head.weight", "gradient_norm")) == [0, 2, 4]


def test_a_step_that_has_not_ended_is_not_recorded():
    model, optimizer = made(lr=0.1)
    history = History(model, limits=None)
    run = amanda.scheduled(history, steps=optimizer)
    for epoch in range(2):
        with run:
            for _ in range(3):
                step_of(model, optimizer)
            model(torch.ones(1, 4))  # validation
        assert list(values(history, "parameters", "head.weight", "update_norm")) == list(range(3 * (epoch + 1)))


def test_no_step_at_all_is_a_warning():
    model, optimizer = made(lr=0.1)
    text = (
        r"^\[history\] no step has ended, so nothing was recorded; call step\(\) of the scope after each step, or count"
    )
    with pytest.warns(HistoryWarning, match=text), amanda.scheduled(History(model)):
        step_of(model, optimizer)
    with amanda.scheduled(History(model)):  # nothing has run
        pass


def test_a_step_is_not_recorded_twice(says):
    model, optimizer = made(lr=0.1)
    history = History(model)
    trained(history, model, optimizer, steps=3)
    text = (
        "[history] step 0 was recorded already; enter the same scope again, instead of a new one, or tell the number "
        "of its first step: amanda.scheduled(history, first_step=3)"
    )
    with says(ValueError, text):
        trained(history, model, optimizer)
    trained(history, model, optimizer, steps=1, first_step=3)
    assert list(values(history, "scalars", "loss", "value")) == [0, 1, 2, 3]


def test_warm_up_steps_are_not_in_it():
    model, optimizer = made(lr=0.1)
    history = History(model, limits=None)
    trained(history, model, optimizer, schedule=amanda.Schedule(warmup=2, active=2))
    assert {row.step for row in history.rows("step")} == {2, 3, 6, 7}


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"model": 3}, TypeError, "expected a module or an optimizer, got 3"),
        ({"tools": [3]}, TypeError, "tools= are tools with results, such as OpStatistics(), got 3"),
        ({"limits": 3}, TypeError, "limits= is a Limits, or None, got 3"),
        ({"on_alarm": 3}, TypeError, "on_alarm= is a function of an alarm, got 3"),
        ({"keep": 0}, ValueError, "keep= is a number of steps, 1 or more, got 0"),
    ],
)
def test_wrong_arguments_are_told(says, options, error, text):
    with says(error, f"[history] {text}"):
        History(**options)


def test_only_numbers_can_be_logged(says):
    history = History(limits=None)
    history.log(loss="nothing is looked at in a step that is off")
    with amanda.scheduled(history) as run:
        with says(TypeError, f"[history] log takes numbers and tensors with one element, got loss={torch.ones(2)!r}"):
            history.log(loss=torch.ones(2))
        run.step()


@pytest.mark.parametrize(
    ("option", "needs"), [("parquet", "pyarrow"), ("tensorboard", "tensorboard.compat.proto.event_pb2")]
)
def test_what_is_not_installed_is_told(monkeypatch, tmp_path, says, option, needs):
    monkeypatch.setitem(sys.modules, needs, None)
    monkeypatch.delitem(sys.modules, f"amanda.tools.history.{option}", raising=False)
    with says(ImportError, f"[history] {option}= needs {needs.partition('.')[0]}: pip install 'amanda-nn[files]'"):
        History(**{option: tmp_path})


def test_lazy_parameters_are_compared_once_they_have_values():
    model = nn.LazyLinear(3)
    history = History(model, limits=None)
    with amanda.scheduled(history) as run:
        for _ in range(3):
            model(torch.ones(2, 4)).sum().backward()
            run.step()
    steps = {row.quantity: row.steps for row in history.rows() if row.name == "weight"}
    assert steps == {"norm": 2, "update_norm": 2, "update_ratio": 2, "gradient_norm": 3}


def test_its_tools_are_narrowed_with_it():
    model, optimizer = made(lr=0.1)
    history = History(model)
    history.narrow(modules="head")
    trained(history, model, optimizer, steps=2)
    found = {(row.tool, row.module_path) for row in history.rows() if row.op_id is not None}
    assert found == {("statistics", "head"), ("gradients", "head")}
    assert {row.name for row in history.rows() if row.tool == "parameters"} == {
        "body.weight",
        "body.bias",
        "head.weight",
    }


def test_tools_can_be_chosen():
    model, optimizer = made(lr=0.1)
    history = History(model, tools=[OpStatistics()], limits=None)
    trained(history, model, optimizer, steps=2)
    assert {row.tool for row in history.rows()} == {"statistics", "parameters", "scalars"}
    assert "gradient_norm" not in {row.quantity for row in history.rows()}
    history = History(tools=[GradientStatistics()], limits=None)
    trained(history, model, optimizer, steps=2)
    assert {row.tool for row in history.rows()} == {"gradients", "parameters", "scalars"}


def test_the_example_finds_what_goes_wrong(preloaded, tmp_path):
    done = preloaded.run(str(ROOT / "examples" / "python" / "training_history.py"), folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    plain, fast, deep = (int(count) for count in re.findall(r": (\d+) alarms$", done.stdout, re.MULTILINE))
    assert plain < fast
    assert deep >= 3
    assert "vanishing gradient since step 0: the gradient of 6.weight is" in done.stdout
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["plain", "too deep", "too fast"]
