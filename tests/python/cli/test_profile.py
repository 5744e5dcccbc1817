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
    printed, _, answer, whole, _, heading = done.stdout.splitlines()[:6]
    assert printed == "done ['3', '--by']"
    number = textwrap.dedent(TRAINING).splitlines().index(SLOW) + 1
    listed = {line.partition(" │ ")[2]: line.split("│")[0].split() for line in done.stdout.splitlines()}
    line, calls, _, backward, share, _ = listed[SLOW]
    assert (line, calls) == (str(number), "0")
    assert float(backward) >= 3 * 200
    assert float(share.rstrip("%")) > 50
    assert listed["    y.sum().backward()"][1] == "6", "sum, and the ones_like of its gradient"
    took = rf"operators took \S+ s, .* of it backward: (over )?\d+% in script.py:{number}, `y = Slow.apply\(y\)`"
    assert re.match(took, answer), answer
    assert re.match(r"the program took \S+ s: \S+ s operators", whole)
    assert heading.startswith("script.py: ")

    rows = json.loads((tmp_path / "rows.json").read_text())
    assert rows[0]["name"] == f"{tmp_path / 'script.py'}:{number}"
    assert rows[0]["backward_ns"] >= 3 * 200e6
    assert rows[0]["mean_ns"] is None, "there was no forward call"
    expected = pandas.DataFrame(rows)
    for frame in (pandas.read_csv(tmp_path / "rows.csv"), pandas.read_parquet(tmp_path / "rows.parquet")):
        pandas.testing.assert_frame_equal(frame, expected, check_dtype=False)
    assert "y = Slow.apply(y)" in (tmp_path / "page.html").read_text()


def test_other_groupings_are_tables_and_a_failing_program_has_one_too(profile):
    done = profile("--by", "op", "--top", "9", "script.py", "two")  # by time, which depends on the machine
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


RESTS = """
    import time, torch, slow_import
    from torch.utils.data import DataLoader

    class Rows:
        def __len__(self):
            return 4

        def __getitem__(self, index):
            time.sleep(0.2)
            return torch.ones(3)

    def count():
        end = time.thread_time() + 0.8
        while time.thread_time() < end:
            pass

    torch.ones(3)
    for row in DataLoader(Rows()):
        row + 1
    count()
    time.sleep(0.8)
"""


def test_it_tells_where_the_program_was_outside_operators(run_python, tmp_path):
    (tmp_path / "slow_import.py").write_text("import time\ntime.sleep(0.8)\n")
    code = textwrap.dedent(RESTS)
    (tmp_path / "script.py").write_text(code)
    done = run_python("-m", "amanda", "profile", "script.py")
    whats = "imports|data loading|Python between operators|waiting"
    parts = dict(re.findall(rf"[ ,:] (\d[\d.]* m?s (?:{whats})[^(]*)\((.*?)\)", done.stdout))
    lines = code.splitlines()
    expected = {
        "data loading": "        time.sleep(0.2)",
        "Python between operators": "    while time.thread_time() < end:",
        "waiting": "time.sleep(0.8)",
    }
    told = {re.sub(r"^\S+ m?s ", "", part): (part, where) for part, where in parts.items()}
    assert next(part for name, (part, _) in told.items() if name.startswith("imports")).split()[1] == "s"
    for what, line in expected.items():
        part, where = next(found for name, found in told.items() if name.startswith(what))
        number, unit = part.split()[:2]
        assert float(number) / (1 if unit == "s" else 1000) > 0.6
        spot = int(where.removeprefix("most at script.py:"))
        near = range(spot - 1, spot + 2) if what.startswith("Python") else [spot]
        assert line in [lines[number - 1] for number in near], (what, where)


def test_where_one_line_holds_most_it_looks_into_libraries_and_modules(run_python, tmp_path):
    library = tmp_path / "site-packages"
    library.mkdir()
    (library / "fitting.py").write_text(
        "import torch\n\ndef fit(model):\n    x = torch.ones(2, 8)\n    for _ in range(300):\n        model(x)\n"
    )
    script = """
        import sys
        sys.path.insert(0, "site-packages")
        import fitting, torch; from collections import OrderedDict
        block = lambda: torch.nn.ModuleDict({"inner": torch.nn.Linear(8, 8)})["inner"]
        fitting.fit(torch.nn.Sequential(OrderedDict(layers=torch.nn.Sequential(*[block() for _ in range(4)]))))
        """
    (tmp_path / "script.py").write_text(textwrap.dedent(script))
    done = run_python("-m", "amanda", "profile", "script.py")
    _, answer, *_ = done.stdout.splitlines()
    assert done.stderr == ""
    assert re.search(r": (over )?\d+% in script.py:6, `fitting.fit\(.*`; .*% of it at fitting.py:6 ", answer), answer
    assert re.search(r"; (over )?\d+% of it in modules layers.\*, .*\(see --by module\)$", answer), answer
    _, _, listed = done.stdout.partition("lines of libraries that script.py:6 calls (--libraries lists all):\n")
    assert {"line", "calls", "ms", "source"} <= set(listed.split()), (
        "the source of each line, too, as nothing is narrow"
    )
    assert re.search(r"fitting.py:6 +1200 .* `model\(x\)`", listed)
