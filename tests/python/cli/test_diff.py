"""`amanda diff`: its table, files and exit statuses."""

import json

import pytest

PROGRAM = """
import sys, torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
print(sys.argv[1:])
model(torch.ones(2, 4)).sum().backward()
"""


@pytest.fixture
def diff(tmp_path, run_python):
    (tmp_path / "a.py").write_text(PROGRAM)
    (tmp_path / "b.py").write_text(
        PROGRAM.replace("import sys", "\nimport os, sys").replace("ones(2", "zeros(2") + "\n"
    )
    return lambda *arguments: run_python("-m", "amanda", "diff", *arguments)


def test_two_scripts(diff, tmp_path):
    same = diff("a.py", "a.py", "--flag")
    assert (same.returncode, same.stdout) == (0, "['--flag']\n['--flag']\n\n0 differences\n"), same.stderr
    other = diff("--json", "rows.json", "--html", "page.html", "a.py", "b.py")
    assert other.returncode == 1, other.stderr
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert {(row["kind"], row["name"]) for row in rows} >= {
        ("only in this run", "aten::zeros"),
        ("only in reference", "aten::ones"),
    }
    assert other.stdout.endswith(f"{len(rows)} differences\n")
    assert "aten::zeros" in (tmp_path / "page.html").read_text()


def test_a_record_for_later(diff):
    assert diff("--record", "ref", "a.py").returncode == 0
    assert diff("--against", "ref", "a.py").returncode == 0
    again = diff("--record", "ref", "a.py")
    assert again.returncode == 2
    assert "'ref' is not empty" in again.stderr


RANKS = """
import time, torch, torch.distributed as dist
dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.LayerNorm(8), torch.nn.Linear(8, 3))
model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
rank = dist.get_rank()
data = torch.tensor([[1.0, 2, 3, 4], [5, 6, 7, 8 + rank]])
if rank == 1:
    model.module[1].eps = 1e-3
for _ in range(2):
    optimizer.zero_grad()
    model(data).square().sum().backward()
    optimizer.step()
time.sleep(0.1)  # see process_groups.py
dist.destroy_process_group()
"""


def test_one_rank_against_another(diff, run_python, tmp_path):
    (tmp_path / "ranks.py").write_text(RANKS)
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "amanda", "diff"]
    recorded = run_python(*launch, "--record", "ref", "ranks.py")
    assert recorded.returncode == 0, recorded.stderr
    compared = diff("--json", "rows.json", "ref/rank0", "ref/rank1")
    assert compared.returncode == 1, compared.stderr
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert [(row["kind"], row["name"], row["module_path"], row["note"], row["runs"]) for row in rows] == [
        ("input", "aten::linear", "module.0", "input", 2),
        ("operator", "aten::layer_norm", "module.1", "eps: 1e-05 -> 0.001", 2),
    ], "neither what follows from them, nor gradients that were reduced"


def test_mistakes_and_programs_that_fail(diff, tmp_path):
    assert "expected two scripts; or --record or --against, and a script" in diff("a.py").stderr
    missing = diff("--against", "nothing", "a.py")
    assert (missing.returncode, missing.stdout) == (2, "")
    (tmp_path / "fails.py").write_text("import sys; sys.exit(1)")
    failed = diff("fails.py", "a.py")
    assert failed.returncode == 3
    assert failed.stderr == "amanda diff: fails.py ended with status 1\n"
    (tmp_path / "raises.py").write_text("1 / 0")
    raised = diff("a.py", "raises.py")
    assert raised.returncode == 3
    assert raised.stderr.endswith("ZeroDivisionError: division by zero\namanda diff: raises.py ended with status 1\n")
