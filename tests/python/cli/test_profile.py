"""`amanda profile`: the listing, tables and files of a program, and that its exit status is its own."""

import json
import re
import textwrap

import pandas
import pytest

TRAINING = """
    import sys, time, torch

    class Slow(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            time.sleep(0.2)  # by far the most, on a busy machine, too
            return grad

    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
    for _ in range(int(sys.argv[1])):
        y = model(torch.ones(2, 3))
        y = Slow.apply(y)
        y.sum().backward()
    print("done", sys.argv[1:])
    sys.exit(7)
"""
SLOW = "    y = Slow.apply(y)"


@pytest.fixture
def profile(tmp_path, run_python):
    def run(*arguments):
        (tmp_path / "script.py").write_text(textwrap.dedent(TRAINING))
        return run_python("-m", "amanda", "profile", *arguments)

    return run


def test_it_prints_the_source_with_what_each_line_costs_and_writes_files(profile, tmp_path):
    files = ["--html", "page.html", "--json", "rows.json", "--csv", "rows.csv", "--parquet", "rows.parquet"]
    done = profile("--backward", *files, "script.py", "3", "--by")
    assert (done.returncode, done.stderr) == (7, "")
    assert done.stdout.startswith("done ['3', '--by']\n\nscript.py: ")
    number = textwrap.dedent(TRAINING).splitlines().index(SLOW) + 1
    listed = {line.partition(" │ ")[2]: line.split("│")[0].split() for line in done.stdout.splitlines()}
    line, calls, _, backward, share, _ = listed[SLOW]
    assert (line, calls) == (str(number), "0")
    assert float(backward) >= 3 * 200
    assert float(share.rstrip("%")) > 50
    assert listed["    y.sum().backward()"][1] == "6", "sum, and the ones_like of its gradient"
    assert re.fullmatch(r"operators took \d.*, its imports included", done.stdout.splitlines()[-1])

    rows = json.loads((tmp_path / "rows.json").read_text())
    assert rows[0]["name"] == f"{tmp_path / 'script.py'}:{number}"
    assert rows[0]["backward_ns"] >= 3 * 200e6
    assert rows[0]["mean_ns"] is None, "there was no forward call"
    expected = pandas.DataFrame(rows)
    for frame in (pandas.read_csv(tmp_path / "rows.csv"), pandas.read_parquet(tmp_path / "rows.parquet")):
        pandas.testing.assert_frame_equal(frame, expected, check_dtype=False)
    assert "y = Slow.apply(y)" in (tmp_path / "page.html").read_text()


def test_other_groupings_are_tables_and_a_failing_program_has_one_too(profile):
    done = profile("--by", "op", "--top", "1", "script.py", "two")
    assert done.returncode == 1
    assert "ValueError: invalid literal for int()" in done.stderr
    assert ["aten::uniform_", "4"] in [line.split()[:2] for line in done.stdout.splitlines()], "Linear's parameters"
    assert "operators took" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--skip", "-1"], "argument --skip: expected 0 or more, got -1"),
        (["--json", "missing/rows.json"], "argument --json: can't write 'missing/rows.json'"),
        (["--html", "."], "argument --html: can't write '.'"),
    ],
)
def test_a_mistake_is_told_before_the_program_runs(profile, arguments, text):
    done = profile(*arguments, "script.py", "1")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith(f"error: {text}\n")
