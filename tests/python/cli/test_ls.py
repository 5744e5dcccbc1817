"""`amanda ls`: the points of a program, and that the program it runs is none the wiser."""

import json
import re
import textwrap

import pytest


@pytest.fixture
def ls(tmp_path, run_python):
    """ls(*arguments, script="..."): the finished process; the script is script.py in its folder."""

    def run(*arguments, script=""):
        (tmp_path / "script.py").write_text(textwrap.dedent(script))
        return run_python("-m", "amanda", "ls", *arguments)

    return run


TRAINING = """
    import sys, torch
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
    for _ in range(3):
        model(torch.ones(2, 3)).sum().backward()
    print("done", sys.argv[1:])
"""


def rows(output):
    """(runs, operator, the rest) of the table."""
    table = output.partition("\nruns ")[2].splitlines()[1:-1]
    return [tuple(line.split(maxsplit=2)) for line in table]


def test_it_lists_the_points_of_a_program(ls):
    done = ls("script.py", "--top", "x", script=TRAINING)
    assert (done.returncode, done.stderr) == (0, "")
    assert "done ['--top', 'x']\n" in done.stdout
    found = rows(done.stdout)
    assert [row[:2] for row in found if row[1].startswith("aten::") and "script.py:5" in row[2]][:5] == [
        ("3", "aten::ones"),
        ("3", "aten::linear"),
        ("3", "aten::relu"),
        ("3", "aten::linear"),
        ("3", "aten::sum"),
    ]
    linear = next(rest for runs, name, rest in found if name == "aten::linear")
    assert re.fullmatch(
        r"0 +script\.py:5 +input float32\[2, 3\], weight float32\[4, 3\], bias float32\[4\] +float32\[2, 4\] +0x\w+",
        linear,
    )
    assert ("3", "AddmmBackward0") in {row[:2] for row in found}
    assert re.fullmatch(r"\d+ operators, \d+ backward operators, \d+ runs", done.stdout.splitlines()[-1])


def test_ops_sort_and_top(ls):
    done = ls("--ops", "relu,lin*", "--ops", "sum", "--sort", "operator", "script.py", script=TRAINING)
    forward = [row[1] for row in rows(done.stdout) if row[1].startswith("aten::")]
    assert forward == ["aten::linear", "aten::linear", "aten::relu", "aten::sum"]
    done = ls("--top", "1", "--ops", "relu,linear", "script.py", script=TRAINING)
    assert re.search(r"^and \d+ more$", done.stdout, re.MULTILINE)


def test_json(ls, tmp_path):
    done = ls("--json", "points.json", "--ops", "linear", "script.py", script=TRAINING)
    assert done.stdout == "done []\n"
    points = json.loads((tmp_path / "points.json").read_text())
    first = points[0]
    assert (first["operator"], first["module_path"], first["runs"]) == ("aten::linear", "0", 3)
    assert first["inputs"][1] | {"device": ""} == {
        "name": "weight",
        "kind": "tensor",
        "dtype": "float32",
        "shape": [4, 3],
        "device": "",
        "elements": [],
    }
    assert {row["backward_operator"] for row in points} >= {"", "AddmmBackward0"}


def test_a_module(ls):
    done = ls("-m", "script", "--flag", script=TRAINING)
    assert done.returncode == 0
    assert done.stdout.startswith("done ['--flag']\n")
    assert "aten::linear" in done.stdout


@pytest.mark.parametrize(
    ("end", "status", "printed"),
    [("sys.exit(3)", 3, ""), ("raise KeyError('x')", 1, "KeyError: 'x'\n")],
)
def test_a_program_that_fails_or_exits_is_listed_up_to_there(ls, end, status, printed):
    done = ls("script.py", script=f"import sys, torch; torch.ones(2).sin(); {end}")
    assert done.returncode == status
    assert done.stderr.endswith(printed)
    assert bool(done.stderr) == bool(printed)
    assert [row[:2] for row in rows(done.stdout)][:2] == [("1", "aten::ones"), ("1", "aten::sin")]


def test_a_program_without_operators(ls):
    done = ls("script.py", script="print(1)")
    assert done.stdout == "1\n\nno operators ran\n"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nowhere.py"], "amanda ls: error: can't open 'nowhere.py': No such file or directory"),
        ([], "amanda ls: error: expected a script, or -m and a module, or a .pt2 or .onnx file"),
        (
            ["--json", "train.py"],
            "amanda ls: error: expected a script, or -m and a module, or a .pt2 or .onnx file; --json took 'train.py' as "
            "its value",
        ),
        (["-m"], "amanda ls: error: argument -m: expected a module"),
        (["--top", "-1", "script.py"], "amanda ls: error: argument --top: expected a number of rows, got -1"),
        (
            ["--json", "no/where.json", "script.py"],
            "amanda ls: error: argument --json: can't write 'no/where.json': No such file or directory",
        ),
    ],
)
def test_wrong_command_lines(ls, arguments, says):
    done = ls(*arguments)
    assert (done.returncode, done.stderr.splitlines()[-1]) == (2, says)
    assert done.stdout == ""


def test_a_name_that_no_operator_has(ls):
    done = ls("--ops", "conv2D", "script.py")
    assert done.returncode == 2
    message = done.stderr.splitlines()[-1]
    assert message.startswith("amanda ls: error: argument --ops: [tool] points: ")
    assert "conv2d" in message


def test_it_begins_with_how_much_ran_and_where(run_python, tmp_path):
    (tmp_path / "script.py").write_text("import torch\nx = torch.ones(2)\nfor _ in range(1000):\n    x.exp() + 1\n")
    done = run_python("-m", "amanda", "ls", "script.py")
    answer = done.stdout.splitlines()[1]
    assert answer.startswith("operators ran at 3 places; most of them, 2, are at script.py:4; most often aten::")
    assert answer.endswith(", 1,000 times")
