"""`amanda watch`: what it writes and prints of a script that knows nothing of it."""

import re
import textwrap

import pandas
import pytest
import torch
from amanda.cli.main import main

TRAINING = """
    import sys, torch
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1, bias=False))
    model[0].bias.data[1] = -100
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    norms, losses = [], []
    for step in range(60):
        optimizer.zero_grad()
        loss = model(torch.randn(16, 3)).square().mean()
        losses.append(loss.item())
        loss.backward()
        norms.append(0.5 * model[2].weight.grad.norm().item())
        optimizer.step()
    torch.save(norms, "norms")
    torch.save(losses, "losses")
    print("done", sys.argv[1:])
    sys.exit(7)
"""


@pytest.fixture
def watch(tmp_path, run_python):
    def run(*arguments):
        (tmp_path / "script.py").write_text(textwrap.dedent(TRAINING))
        return run_python("-m", "amanda", "watch", *arguments)

    return run


def test_it_writes_a_history_and_keeps_the_status(watch, tmp_path, capsys):
    done = watch("--every", "3", "--parquet", "out", "--top", "5", "script.py", "--every", "x")
    assert done.returncode == 7, done.stderr
    assert done.stdout.startswith("done ['--every', 'x']\n")
    assert "HistoryWarning: [history] dead units since step 0: 1 of 4 units of dimension 1" in done.stderr
    _, _, summary, loss, norm, change, alarms, alarm, *_ = done.stdout.splitlines()
    assert summary == "60 steps, 20 of them looked at"
    assert re.fullmatch(r"loss: from \S+ to \S+ in 20 steps, between \S+ and \S+", loss)
    assert re.fullmatch(r"norm of all gradients: from \S+ to \S+ in 20 steps, between \S+ and \S+", norm)
    assert re.search(r"in its last step, as a part of its norm: \S+ \(\d.\w+\) to \S+ \(\d.\w+\)$", change)
    assert alarms == "alarms: 1"
    assert alarm.startswith("  dead units since step 0: 1 of 4 units of dimension 1 were zero for all samples: 1; ")
    assert "aten::relu in 1 (" in alarm
    assert alarm.endswith("script.py:10)")
    frame = pandas.read_parquet(tmp_path / "out" / "series")
    assert set(frame["step"]) == set(range(0, 60, 3))
    losses = frame[(frame["name"] == "loss") & (frame["tool"] == "scalars")]
    assert losses["value"].tolist() == pytest.approx(torch.load(tmp_path / "losses")[::3], rel=1e-6)
    updates = frame[(frame["name"] == "2.weight") & (frame["quantity"] == "update_norm")]
    assert updates["value"].tolist() == pytest.approx(torch.load(tmp_path / "norms")[::3], rel=1e-5)
    with pytest.raises(SystemExit, match="2"):
        main(["watch", "--parquet", str(tmp_path / "out"), str(tmp_path / "script.py")])
    printed = capsys.readouterr().err
    assert "has another run; give each run a folder of its own, or go on with that one: resume=True" in printed


def test_its_table_begins_with_what_is_asked_for_and_never_with_the_making_of_the_model(watch):
    lines = watch("--top", "12", "script.py").stdout.splitlines()
    start = next(i for i, line in enumerate(lines) if line.split()[:2] == ["series", "quantity"])
    first = [line.split()[:2] for line in lines[start + 2 : start + 14]]
    assert [name for name, _ in first[:2]] == ["loss", "gradient_norm"]
    expected = [
        [name, what] for name in ("0.weight", "0.bias", "2.weight") for what in ("update_ratio", "gradient_norm")
    ]
    assert first[2][0] == "optimizer_gradient_norm"
    assert first[3:9] == expected
    assert not {"uniform_", "fill_"} & {name for name, _ in first}


def test_a_program_without_steps_is_told_so(run_python, tmp_path):
    (tmp_path / "script.py").write_text("import torch\ntorch.ones(1).exp()\n")
    done = run_python("-m", "amanda", "watch", "script.py")
    assert done.stdout.startswith("\n0 steps, 0 of them looked at\nno step was looked at\n")


def test_what_it_warns_of_at_the_end_is_no_error_of_the_program(run_python, tmp_path):
    (tmp_path / "script.py").write_text("import torch, warnings\nwarnings.simplefilter('error')\ntorch.ones(1).exp()\n")
    done = run_python("-m", "amanda", "watch", "script.py")
    assert done.returncode == 0
    assert done.stderr.startswith("amanda: [history] no step has ended, so nothing was recorded; ")


@pytest.mark.parametrize("option", [["--every", "0"], ["--skip-first", "-1"]])
def test_numbers_that_mean_nothing_are_refused(capsys, option):
    with pytest.raises(SystemExit, match="2"):
        main(["watch", *option, __file__])
    assert f"{option[0][2:].replace('-', '_')}= is a number of steps" in capsys.readouterr().err
