"""History: its series against a plain training loop, its files read back by others, and that it changes nothing."""

import math
import re
import signal
import subprocess
import sys
import textwrap

import amanda
import pandas
import pytest
import torch
from amanda.tools.flops import Flops
from amanda.tools.gradients import GradientStatistics
from amanda.tools.history import History
from amanda.tools.statistics import OpStatistics
from repository import ROOT
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 8), nn.Linear(8, 1, bias=False)
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        return self.head(torch.relu(self.drop(self.body(x))))


def made(optimizer=torch.optim.SGD, **options):
    torch.manual_seed(0)
    model = Net()
    return model, optimizer(model.parameters(), **options)


def step_of(model, optimizer):
    """A training step. Gradients are dropped behind it, as in many programs."""
    loss = model(torch.randn(16, 4)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


def trained(history, model, optimizer, steps=8, **plan):
    with amanda.scheduled(history, **plan) as run:
        for _ in range(steps):
            history.log(loss=step_of(model, optimizer))
            run.step()


def values(history, tool, name, quantity):
    """A series: values by step."""
    rows = [row for row in history.rows("step") if (row.tool, row.name, row.quantity) == (tool, name, quantity)]
    return {row.step: row.value for row in rows}


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
                for quantity, value in {**found, "gradient_norm": gradients[name]}.items():
                    expected.setdefault(("parameters", name, quantity), {})[step] = value
            expected.setdefault(("scalars", "loss", "value"), {})[step] = loss.item()
            total = math.sqrt(sum(norm**2 for norm in gradients.values()))
            expected.setdefault(("scalars", "gradient_norm", "value"), {})[step] = total
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
    with amanda.scheduled(history):
        for scale in (1.0, 3.0):
            layer(torch.tensor([[3.0, 4.0]]) * scale).sum().backward()
            history.log(loss=scale)
    assert values(history, "parameters", "weight", "gradient_norm") == {0: 10.0}
    assert values(history, "scalars", "loss", "value") == {0: 2.0}


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


# ---- files -----------------------------------------------------------------------------------------------------------


def scalars(folder):
    """TensorBoard's own reader: values by tag and step."""
    reader = EventAccumulator(str(folder))
    reader.Reload()
    return {tag: {e.step: e.value for e in reader.Scalars(tag)} for tag in reader.Tags()["scalars"]}


def parquet(folder):
    return pandas.read_parquet(folder / "series")


def test_files_have_what_rows_have(tmp_path):
    model, optimizer = made(lr=0.1)
    history = History(model, parquet=tmp_path / "p", tensorboard=tmp_path / "t", flush_seconds=0)
    trained(history, model, optimizer, steps=3)
    rows = [
        (row.step, row.tool, row.name, row.op_id or 0, row.module_path, row.source, row.detail, row.quantity, row.value)
        for row in history.rows("step")
    ]
    assert list(parquet(tmp_path / "p").itertuples(index=False, name=None)) == rows
    assert len(list((tmp_path / "p" / "series").glob("part-*.parquet"))) == 3  # one for each flush
    found = scalars(tmp_path / "t")
    assert len(found) == len({row[1:-1] for row in rows})
    assert found["loss"] == pytest.approx(values(history, "scalars", "loss", "value"), rel=1e-6)
    assert found["statistics.mean/relu"] == pytest.approx(values(history, "statistics", "aten::relu", "mean"), rel=1e-6)
    assert found["parameters.update_ratio/body.weight"] == pytest.approx(
        values(history, "parameters", "body.weight", "update_ratio"), rel=1e-6
    )


def test_operators_of_one_module_have_tags_of_their_own(tmp_path):
    history = History(tensorboard=tmp_path, limits=None)
    with amanda.scheduled(history):
        x = torch.relu(torch.ones(2))
        for _ in range(2):
            x = torch.relu(x)
        torch.relu(x) + torch.relu(x)
    tags = [tag for tag in scalars(tmp_path) if tag.startswith("statistics.mean/relu")]
    assert len(tags) == len(set(tags)) == 4
    assert tags[0] == "statistics.mean/relu"
    assert all(tag.startswith("statistics.mean/relu test_history.py:") for tag in tags[1:])
    assert tags[3].endswith(" #2")


def test_a_folder_belongs_to_one_run(tmp_path, says):
    model, optimizer = made(lr=0.1)
    first, other = (History(model, parquet=tmp_path) for _ in range(2))
    trained(first, model, optimizer, steps=2)
    text = (
        f"[history] {str(tmp_path)!r} has another run; give each run a folder of its own, or go on with that one: "
        "resume=True"
    )
    with says(FileExistsError, text):
        History(model, tensorboard=tmp_path)
    with says(FileExistsError, text):  # it was made before the first had begun
        trained(other, model, optimizer)
    assert set(parquet(tmp_path)["step"]) == {0, 1}


def test_a_resumed_run_drops_what_came_after_its_checkpoint(tmp_path, says):
    torch.manual_seed(0)
    x = torch.randn(9, 16, 4)

    def run(history, steps, model, optimizer, first_step=0):
        with amanda.scheduled(history, first_step=first_step) as scope:
            for step in range(first_step, steps):
                loss = model(x[step]).square().mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                history.log(loss=loss)
                scope.step()
                if step == 3:
                    with amanda.disabled():
                        torch.save([model.state_dict(), optimizer.state_dict()], tmp_path / "checkpoint")

    def new():
        model, optimizer = made(lr=0.1)
        return model.eval(), optimizer

    whole, parts = tmp_path / "whole", tmp_path / "parts"
    model, optimizer = new()
    run(History(model, parquet=whole, tensorboard=whole), 9, model, optimizer)
    model, optimizer = new()
    run(History(model, parquet=parts, tensorboard=parts, flush_seconds=0), 6, model, optimizer)
    for thing, state in zip((model, optimizer), torch.load(tmp_path / "checkpoint"), strict=True):
        thing.load_state_dict(state)
    with says(
        ValueError,
        "[history] resume=True, and the first step is 0, would drop all that was written; tell the number of the first "
        "step: amanda.scheduled(history, first_step=...)",
    ):
        run(History(model, parquet=parts, resume=True), 6, model, optimizer)
    run(History(model, parquet=parts, tensorboard=parts, resume=True), 9, model, optimizer, first_step=4)
    columns = ["step", "tool", "name", "quantity", "value"]  # a place that runs in another call is another line
    expected, found = (parquet(folder)[columns].astype({"name": str}) for folder in (whole, parts))
    assert len(found) > 100
    pandas.testing.assert_frame_equal(found, expected, check_categorical=False)
    assert scalars(parts) == scalars(whole)


def test_a_run_that_is_killed_leaves_files_that_can_be_read(tmp_path):
    script = f"""
        import os, signal, torch, amanda
        from amanda.tools.history import History
        folder = {str(tmp_path)!r}
        model = torch.nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        history = History(model, parquet=folder, tensorboard=folder, flush_seconds=0)
        with amanda.scheduled(history, steps=optimizer):
            for step in range(9):
                model(torch.ones(2, 2)).sum().backward()
                if step == 5:
                    os.kill(os.getpid(), signal.SIGKILL)
                optimizer.step()
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=100)
    assert done.returncode == -signal.SIGKILL
    assert set(parquet(tmp_path)["step"]) == {0, 1, 2, 3, 4}  # the one that has not ended is not there
    assert set(scalars(tmp_path)["parameters.norm/weight"]) == {0, 1, 2, 3, 4}


def test_a_run_that_fails_has_written_all_whole_steps(tmp_path):
    model, optimizer = made(lr=0.1)

    def fails():
        with amanda.scheduled(History(model, parquet=tmp_path, tensorboard=tmp_path), steps=optimizer):
            for _ in range(3):
                step_of(model, optimizer)
            model(torch.ones(1, 5))

    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        fails()
    assert set(parquet(tmp_path)["step"]) == set(scalars(tmp_path)["parameters.norm/head.weight"]) == {0, 1, 2}


def test_a_folder_that_cannot_be_written_is_told(tmp_path, says):
    (tmp_path / "file").touch()
    path = tmp_path / "file" / "runs"
    with says(
        NotADirectoryError,
        f"[history] can't write to {str(path)!r}: Not a directory; what was written before can be read",
    ):
        History(parquet=path)
    model, optimizer = made(lr=0.1)
    history = History(model, parquet=tmp_path / "run", flush_seconds=0)
    with amanda.scheduled(history, steps=optimizer) as run:
        step_of(model, optimizer)
        (tmp_path / "run" / "series").rename(tmp_path / "read")
        (tmp_path / "run" / "series").touch()  # in its way
        with pytest.raises(OSError, match=r"^\[history\] can't write to '.*/run/series': ") as raised:
            step_of(model, optimizer)
        assert "what was written before can be read" in str(raised.value)
        (tmp_path / "run" / "series").unlink()
        step_of(model, optimizer)  # also what could not be written
        assert run.step_number == 3
    assert set(pandas.read_parquet(tmp_path / "read")["step"]) == {0}
    assert set(parquet(tmp_path / "run")["step"]) == {1, 2}


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


def test_a_step_that_is_not_ended_counts_if_the_program_ends_normally():
    model, optimizer = made(lr=0.1)
    history = History(model, limits=None)
    with amanda.scheduled(history):
        step_of(model, optimizer)
    assert list(values(history, "parameters", "head.weight", "update_norm")) == [0]


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
    with (
        amanda.scheduled(history),
        says(TypeError, f"[history] log takes numbers and tensors with one element, got loss={torch.ones(2)!r}"),
    ):
        history.log(loss=torch.ones(2))


@pytest.mark.parametrize(
    ("option", "needs"), [("parquet", "pyarrow"), ("tensorboard", "tensorboard.compat.proto.event_pb2")]
)
def test_what_is_not_installed_is_told(monkeypatch, tmp_path, says, option, needs):
    monkeypatch.setitem(sys.modules, needs, None)
    monkeypatch.delitem(sys.modules, f"amanda.tools.history.{option}", raising=False)
    with says(ImportError, f"[history] {option}= needs {needs.partition('.')[0]}: pip install 'amanda[history]'"):
        History(**{option: tmp_path})


def test_tools_can_be_chosen():
    model, optimizer = made(lr=0.1)
    history = History(model, tools=[OpStatistics()], limits=None)
    trained(history, model, optimizer, steps=2)
    assert {row.tool for row in history.rows()} == {"statistics", "parameters", "scalars"}
    assert "gradient_norm" not in {row.quantity for row in history.rows()}
    history = History(tools=[GradientStatistics()], limits=None)
    trained(history, model, optimizer, steps=2)
    assert {row.tool for row in history.rows()} == {"gradients", "parameters", "scalars"}


def test_the_example_finds_what_goes_wrong(tmp_path):
    example = ROOT / "examples" / "python" / "training_history.py"
    done = subprocess.run([sys.executable, str(example)], capture_output=True, text=True, cwd=tmp_path, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
    plain, fast, deep = (int(count) for count in re.findall(r": (\d+) alarms$", done.stdout, re.MULTILINE))
    assert plain < fast
    assert deep >= 3
    assert "vanishing gradient since step 0: the gradient of 6.weight is" in done.stdout
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["plain", "too deep", "too fast"]
