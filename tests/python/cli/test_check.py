"""`amanda check`: findings, options, and the exit status."""

import re
import textwrap

import pytest
from amanda.tools.check import RULES

SCRIPT = """
import sys
import torch

torch.manual_seed(0)
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
x, y = torch.randn(8, 2), torch.randn(8)
for _ in range(4):
    loss = (model(x) - y).square().mean() if "broadcasts" in sys.argv else (model(x)[:, 0] - y).square().mean()
    loss.backward()
    optimizer.step()
    if "accumulates" not in sys.argv:
        optimizer.zero_grad()
sys.exit(int(sys.argv[1]))
"""
BROADCASTS = (
    "loss-broadcast: aten::sub (script.py:10), 4 times\n"
    "  prediction and target are broadcast, so that each meets all others: shapes (8, 1) and (8,) give (8, 8)\n"
    "  fix: give both the same shape: prediction.squeeze(-1), or target.unsqueeze(-1)\n"
)
ACCUMULATES = (
    "missing-zero-grad: SGD.step (script.py:12), 3 times\n"
    "  backward() adds to the gradients that the last step has used: that of weight was not cleared between two steps\n"
    "  fix: call optimizer.zero_grad() once per step, before backward()\n"
)


@pytest.fixture
def check(tmp_path, run_python):
    (tmp_path / "script.py").write_text(textwrap.dedent(SCRIPT))
    return lambda *arguments: run_python("-m", "amanda", "check", *arguments)


def test_findings_are_printed(check):
    done = check("script.py", "0", "broadcasts", "accumulates")
    assert done.returncode == 1
    head, _, rest = done.stdout.strip("\n").partition("\n\n")
    assert re.fullmatch(
        r"2 findings by \d+ rules, in \d+ operators that they ask for, and 4 steps of 1 optimizer", head
    )
    assert f"{rest}\n" == f"{BROADCASTS}\n{ACCUMULATES}"


@pytest.mark.parametrize(("ends", "status", "until"), [("0", 0, ""), ("2", 3, ", until the program failed")])
def test_a_program_without_mistakes(check, ends, status, until):
    done = check("script.py", ends)
    assert done.returncode == status
    assert re.search(
        rf"\nnothing found by \d+ rules{until}, in \d+ operators that they ask for, and 4 steps", done.stdout
    )


def test_findings_of_a_program_that_fails(check):
    done = check("script.py", "5", "broadcasts")
    assert done.returncode == 1
    assert "1 finding by " in done.stdout


@pytest.mark.parametrize(
    ("options", "status", "found"),
    [
        (["--allow", "loss-broadcast", "--allow", "missing-zero-grad:script.py:12"], 0, []),
        (["--allow", "loss-broadcast:script.py"], 1, ["missing-zero-grad"]),
        (["--only", "loss-broadcast,labels"], 1, ["loss-broadcast"]),
        (["--only", "labels"], 0, []),
    ],
)
def test_options(check, options, status, found):
    done = check(*options, "script.py", "0", "broadcasts", "accumulates")
    assert done.returncode == status
    assert [name for name in ("loss-broadcast", "missing-zero-grad") if f"{name}:" in done.stdout] == found


def test_a_rule_that_there_is_not(check):
    done = check("--only", "broadcast", "script.py", "0")
    assert done.returncode == 2
    assert (
        "amanda check: error: [check] only= names no rule: 'broadcast'; known are accumulation-bypassed, all-frozen, "
        in done.stderr
    )


def test_the_list(check):
    done = check("--list")
    assert done.returncode == 0
    assert [line.split()[0] for line in done.stdout.splitlines() if line.startswith("  ")] == [
        rule.name for rule in RULES
    ]
