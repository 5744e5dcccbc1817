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


GROWING = """
    import torch
    def evaluate(net):
        seen = []
        for i in range(8):
            seen.append(net(torch.randn(256, 64)) if KEEP else net(torch.randn(256, 64)).mean().item())
            if i == FAILS:
                torch.empty(1 << 50)
    evaluate(torch.nn.Linear(64, 512))
"""


def grown(run_python, tmp_path, keep, fails=-1, *options):
    text = textwrap.dedent(GROWING).replace("KEEP", str(keep)).replace("FAILS", str(fails))
    (tmp_path / "script.py").write_text(text)
    return run_python("-m", "amanda", "memory", *options, "script.py")


def test_growth_begins_with_how_much_who_keeps_it_and_which_line(run_python, tmp_path):
    done = grown(run_python, tmp_path, True, -1, "--growth")
    lines = done.stdout.splitlines()
    assert lines[1] == (
        "memory in use grows by 590 KB per call of Linear, 89% of it kept by seen[*] (local of evaluate(), script.py:3), "
        "made at script.py:6; 11% of it kept by the graph of seen[*] (local of evaluate(), script.py:3), "
        "saved by AddmmBackward0, made at script.py:6"
    )
    assert "after the 6th of 7; looked at: the owners of " in lines[2]
    assert "seen[*]" in done.stdout.partition("KB/step")[2]
    assert done.returncode == 0


def test_no_growth_is_said_with_what_was_looked_at(run_python, tmp_path):
    lines = grown(run_python, tmp_path, False, -1, "--growth").stdout.splitlines()
    assert lines[1] == "no memory was found to grow from call of Linear to call of Linear"
    assert re.search(
        r"6th of 7; looked at: the owners of 1 block that operators have made since the first step$", lines[2]
    )
    assert "grow" not in grown(run_python, tmp_path, False).stdout


def test_a_program_that_runs_out_of_memory_gets_the_answer_so_far(run_python, tmp_path):
    done = grown(run_python, tmp_path, True, 6, "--growth")
    assert done.returncode == 1
    assert "memory in use grows by 590 KB per call of Linear" in done.stdout
    assert "after the 6th" in done.stdout
    assert "when aten::empty (script.py:8) ran out of memory" in done.stdout
