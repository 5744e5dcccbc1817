"""`amanda trace`: its table and rows, its mistakes, and that the program's exit status is its own."""

import json
import textwrap

import pytest

TRAINING = """
    import sys, torch
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
    for _ in range(3):
        model(torch.ones(2, 3)).sum().backward()
    print("done", sys.argv[1:])
    sys.exit(7)
"""


@pytest.fixture
def trace(tmp_path, run_python):
    def run(*arguments):
        (tmp_path / "script.py").write_text(textwrap.dedent(TRAINING))
        return run_python("-m", "amanda", "trace", *arguments)

    return run


def test_it_prints_a_table_and_keeps_the_status(trace):
    done = trace("-e", "linear: input.abs().max()", "-e", "*: output.isnan().sum()", "script.py", "--by", "x")
    assert (done.returncode, done.stderr) == (7, "")
    assert done.stdout.startswith("done ['--by', 'x']\n")
    lines = [line.split() for line in done.stdout.splitlines()]
    assert ["0", "linear:", "input.abs().max()", "3", "1"] in [line[:5] for line in lines]
    assert ["0", "*:", "output.isnan().sum()", "3", "0"] in [line[:5] for line in lines]


def test_json_has_all_rows(trace, tmp_path):
    expression = "linear: weight.numel()"
    done = trace("-e", expression, "--by", "id", "--every", "2", "--json", "rows.json", "script.py")
    assert (done.returncode, done.stdout) == (7, "done []\n")
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert [(row["expression"], row["module_path"], row["count"], row["last"]) for row in rows] == [
        (expression, "0", 2, 12),
        (expression, "2", 2, 4),
    ]


def test_a_mistake_is_shown_before_the_program_runs(trace):
    done = trace("-e", "linear: input.max(", "script.py")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith("error: [trace] '(' was never closed\n  linear: input.max(\n                   ^\n")


def test_an_operator_without_the_operand_ends_the_program(trace):
    done = trace("-e", "linear: inptu.max()", "script.py")
    assert done.returncode == 1
    assert "ValueError: [trace] aten::linear has no 'inptu'; it has input, weight, bias, " in done.stderr
