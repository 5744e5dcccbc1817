"""`amanda flops`: a program's floating point operations, against a count by hand."""

import json
import re
import textwrap

PROGRAM = """
    import sys, torch
    model = torch.nn.Sequential(torch.nn.Linear(100, 200), torch.nn.ReLU(), torch.nn.Linear(200, 50))
    for _ in range(2):
        model(torch.ones(500, 100)).sum().backward()
    sys.exit(3)
"""
FIRST, LAST = 2 * 500 * 100 * 200, 2 * 500 * 200 * 50  # products: forward; for one of the gradients, too


def test_rows_sums_and_files(run_python, tmp_path):
    (tmp_path / "script.py").write_text(textwrap.dedent(PROGRAM))
    done = run_python(
        *("-m", "amanda", "flops", "--by", "module", "--json", "rows.json", "--html", "page.html", "script.py")
    )
    assert (done.returncode, done.stderr) == (3, "")
    forward = 2 * (FIRST + LAST)
    backward = 2 * (FIRST + 2 * LAST)  # the input needs no gradient
    lines = [line.split() for line in done.stdout.splitlines() if line.strip()]
    assert [line for line in lines if line[0] in ("(all)", "0", "2")] == [
        ["(all)", "8", f"{(forward + backward) / 1e6:.3f}"],
        ["0", "4", f"{4 * FIRST / 1e6:.3f}"],
        ["2", "4", f"{6 * LAST / 1e6:.3f}"],
    ]
    start = next(i for i, line in enumerate(done.stdout.splitlines()) if " MFLOP forward, " in line)
    summary, uncounted, most = done.stdout.splitlines()[start : start + 3]
    assert summary == f"{forward / 1e6:.3f} MFLOP forward, {backward / 1e6:.3f} MFLOP backward"
    assert uncounted.startswith("nothing was counted in (calls): aten::")
    assert "aten::relu 2" in uncounted
    assert re.fullmatch(r"\d+% of it in module [02]", most)
    rows = {row["module_path"]: row["flops"] for row in json.loads((tmp_path / "rows.json").read_text())}
    assert rows == {"": forward + backward, "0": 4 * FIRST, "2": 6 * LAST}
    assert "<title>Floating point operations: script.py</title>" in (tmp_path / "page.html").read_text()


def test_a_program_without_any_that_makes_warnings_errors_ends_well(run_python, tmp_path):
    (tmp_path / "script.py").write_text(
        "import torch, warnings\nwarnings.simplefilter('error')\ntorch.relu(torch.ones(1))\n"
    )
    done = run_python("-m", "amanda", "flops", "script.py")
    assert done.returncode == 0
    assert "Traceback" not in done.stderr
    assert "0.000 MFLOP forward" in done.stdout
