"""`amanda memory`: what was in memory at the peak, and when there was no more."""

import json
import re
import textwrap

import pytest

PROGRAM = """
    import torch
    kept = torch.ones(250_000)
    temporary = torch.ones(500_000).cos_().sum()
    print("before")
    torch.empty(1 << 50)
"""


def test_the_peak_and_what_was_there_when_memory_ran_out(run_python, tmp_path):
    (tmp_path / "script.py").write_text(textwrap.dedent(PROGRAM))
    done = run_python("-m", "amanda", "memory", "--html", "page.html", "--json", "rows.json", "script.py")
    assert done.returncode == 1
    assert "can't allocate memory" in done.stderr
    output = " ".join(done.stdout.split())
    peak, _, at_error = output.partition("when aten::empty (script.py:6) ran out of memory:")
    assert peak.startswith("before")
    assert "cpu: 3.000 MB at the peak" in peak
    assert "script.py:3" in at_error
    assert "total 1.000 100.0%" in at_error.replace("  ", " ")
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert sorted(row["bytes"] for row in rows) == [4, 1_000_000, 2_000_000]
    assert "Memory at the peak: script.py" in (tmp_path / "page.html").read_text()


LEAK = """
    import torch
    model = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.Tanh(), torch.nn.Linear(512, 1))
    optimizer = torch.optim.AdamW(model.parameters())
    losses = []
    for _ in range(10):
        loss = model(torch.randn(256, 64)).square().mean()
        loss.backward(retain_graph=KEEP)
        optimizer.step()
        losses.append(loss)
"""


@pytest.mark.parametrize("keep", [True, False])
def test_it_begins_with_growth_and_with_what_keeps_what(run_python, tmp_path, keep):
    (tmp_path / "script.py").write_text(textwrap.dedent(LEAK).replace("KEEP", str(keep)))
    lines = run_python("-m", "amanda", "memory", "script.py").stdout.splitlines()
    assert ("memory in use grows by " in lines[1]) == keep
    if keep:
        growth = re.match(
            r"memory in use grows by (\d+) KB per step: .* after the 2nd step .* after the 10th$", lines[1]
        )
        saved = 256 * (64 + 512 + 1) * 4 / 1000  # what the graph of one step holds
        assert 0.9 * saved < int(growth[1]) < 2 * saved
        kept = r"\d+ results of aten::\w+ at script.py:7 are in memory at once, .* of a graph that the program keeps"
        assert re.match(kept, lines[2])
    table = "\n".join(lines)
    assert re.search(r"cpu: \S+ \SB at the peak, \d+% of it \w+", table)
    assert "step, exp_avg, exp_avg_sq of AdamW: 4 parameters" in table
    assert "\n\n\n" not in table  # one empty line before a table


def test_a_page_that_cannot_be_written_is_told_before_the_program_runs(run_python, tmp_path):
    (tmp_path / "script.py").write_text("print('ran')")
    done = run_python("-m", "amanda", "memory", "--html", "no/page.html", "script.py")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.endswith("amanda memory: error: argument --html: can't write 'no/page.html'\n")
