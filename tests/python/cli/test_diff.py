"""`amanda diff`: its table, files and exit statuses."""

import itertools
import json
import os
import re
import signal
import subprocess
import sys
import textwrap

import amanda
import pytest
import torch
from amanda.cli.main import main
from amanda.tools.diff import Recorder, recorder
from amanda.tools.diff.record import Record
from page_tables import tables_of

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


@pytest.fixture
def diff_of(diff):
    """diff_of("a.py", "b.py", *options): as of the two scripts, but the first is recorded without a new interpreter."""
    count = itertools.count()

    def run(reference, script, *options):
        folder = f"record{next(count)}"
        diff("--record", folder, *[option for option in options if option.startswith("--compiled")], reference)
        return diff("--against", folder, *options, script)

    return run


def test_two_scripts(diff, diff_of, tmp_path):
    same = diff("a.py", "a.py", "--flag")
    words = "0 differences in 24 operators, 27 results, forward and backward"
    assert (same.returncode, same.stdout) == (0, f"['--flag']\n['--flag']\n\n{words}\n"), same.stderr
    other = diff_of("a.py", "b.py", "--json", "rows.json", "--html", "page.html")
    assert other.returncode == 1, other.stderr
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert {(row["kind"], row["name"]) for row in rows} >= {
        ("only in this run", "aten::zeros"),
        ("only in reference", "aten::ones"),
    }
    assert re.search(rf"\n{len(rows)} differences in \d+ operators, \d+ results, forward and backward\n$", other.stdout)
    (table,) = tables_of((tmp_path / "page.html").read_text())
    assert any("aten::zeros" in column for column in table["keys"])


def test_a_record_for_later(diff):
    assert diff("--record", "ref", "a.py").returncode == 0
    assert diff("--against", "ref", "a.py").returncode == 0
    again = diff("--record", "ref", "a.py")
    assert again.returncode == 2
    assert "'ref' is not empty" in again.stderr


RANKS = """
import os, torch, torch.distributed as dist
from process_groups import destroy_group
rank = int(os.environ["RANK"])
dist.init_process_group("gloo", init_method="file://" + os.path.abspath("store"), rank=rank, world_size=2)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.LayerNorm(8), torch.nn.Linear(8, 3))
model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.tensor([[1.0, 2, 3, 4], [5, 6, 7, 8 + rank]])
if rank == 1:
    model.module[1].eps = 1e-3
for _ in range(2):
    optimizer.zero_grad()
    model(data).square().sum().backward()
    optimizer.step()
destroy_group()
"""


def test_one_rank_against_another(diff, ranks, tmp_path):
    ranks.program(RANKS, 2, command=("-m", "amanda", "diff", "--record", "ref"))
    compared = diff("--json", "rows.json", "ref/rank0", "ref/rank1")
    assert compared.returncode == 1, compared.stderr
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert [(row["kind"], row["name"], row["module_path"], row["note"], row["runs"]) for row in rows] == [
        ("input", "aten::linear", "module.0", "input", 2),
        ("operator", "aten::layer_norm", "module.1", "eps: 1e-05 -> 0.001", 2),
    ], "neither what follows from them, nor gradients that were reduced"


def test_mistakes_and_programs_that_fail(diff, diff_of, tmp_path):
    assert "expected two scripts; or --record or --against, and a script" in diff("a.py").stderr
    missing = diff("--against", "nothing", "a.py")
    assert (missing.returncode, missing.stdout) == (2, "")
    (tmp_path / "fails.py").write_text("import sys; sys.exit(1)")
    failed = diff("fails.py", "a.py")
    assert failed.returncode == 3
    assert failed.stderr == "amanda diff: fails.py ended with status 1\n"
    (tmp_path / "raises.py").write_text("1 / 0")
    raised = diff_of("a.py", "raises.py")
    assert raised.returncode == 5
    assert raised.stderr.endswith("ZeroDivisionError: division by zero\namanda diff: raises.py ended with status 1\n")


# ---- what was not compared ---------------------------------------------------------------------------------------------


def test_a_damaged_record_is_found_before_the_program_starts(diff, tmp_path):
    assert diff("--record", "ref", "a.py").returncode == 0
    path = tmp_path / "ref" / "1.safetensors"
    path.write_bytes(path.read_bytes()[:100])
    for arguments in (["--against", "ref", "a.py"], ["ref", "ref"]):
        done = diff(*arguments)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.endswith(
            "amanda diff: error: [diff] the record is damaged: ref/1.safetensors: it is cut short; record it again\n"
        )


def test_damage_that_is_found_later_does_not_end_the_program(diff, tmp_path):
    (tmp_path / "c.py").write_text(PROGRAM.replace("seed(0)", "seed(1)") + "print('the end')\n")
    assert diff("--record", "ref", "a.py").returncode == 0
    path = tmp_path / "ref" / "1.safetensors"
    whole = path.read_bytes()
    start = 8 + int.from_bytes(whole[:8], "little")
    path.write_bytes(whole[:start] + bytes(byte ^ 64 for byte in whole[start:]))
    done = diff("--against", "ref", "c.py")
    assert done.returncode == 2, done.stderr
    assert "the end\n" in done.stdout
    assert re.search(r"^stopped here: aten::\w+.*c.py:\d+\), after \d+ of \d+ runs of operators: ", done.stdout, re.M)
    assert "only in reference" not in done.stdout
    told = (
        "amanda diff: error: [diff] the record is damaged: ref/1.safetensors: the elements of a tensor are others than"
    )
    assert told in done.stderr


def test_operators_that_a_program_did_not_reach_are_no_differences(diff_of, tmp_path):
    (tmp_path / "fails.py").write_text(PROGRAM.replace("print", "torch.Tensor.backward = lambda loss: 1 / 0\nprint"))
    done = diff_of("a.py", "fails.py")
    assert done.returncode == 5
    assert done.stderr.endswith("ZeroDivisionError: division by zero\namanda diff: fails.py ended with status 1\n")
    assert "only in reference" not in done.stdout
    stopped, summary = done.stdout.splitlines()[-2:]
    assert re.fullmatch(
        r"stopped here: aten::\S+ \(.*fails.py:7\), after \d+ of \d+ runs of operators: the program failed or was stopped",
        stopped,
    )
    assert summary.startswith("no difference in what was compared (")
    assert summary.endswith(", forward); not compared: what comes after that")


COMPILED = """
import torch
def double(x):
    return x.exp() * 2
COMPILE
double(torch.ones(3))
"""


@pytest.mark.long
@pytest.mark.parametrize("mode", ["eager", "graph", "opaque"])
def test_compiled_functions_are_not_compared_as_they_run_alone(diff_of, tmp_path, mode):
    (tmp_path / "e.py").write_text(COMPILED.replace("COMPILE", ""))
    (tmp_path / "c.py").write_text(COMPILED.replace("COMPILE", "double = torch.compile(double, backend='aot_eager')"))
    done = diff_of("e.py", "c.py", f"--compiled={mode}")
    if mode == "opaque":
        assert done.returncode == 1, "its operators are in one run only"
        assert " differences in " in done.stdout
    else:
        assert done.returncode == 4
        assert "\nno difference in what was compared (" in done.stdout
    assert re.search(r"not compared: .*1 compiled function ran .*: __main__.double \(.*c.py:3\)", done.stdout)
    assert "0 differences" not in done.stdout


THREAD = """
import threading, torch
torch.manual_seed(0)
layer, x = torch.nn.Linear(4, 4), torch.ones(2, 4)
if PARALLEL:
    thread = threading.Thread(target=layer, args=[x])
    thread.start()
    thread.join()
print(layer(x).shape)
"""
CALLS = r"\d+ calls: it runs on another thread, which has entered no scope"


def test_operators_on_other_threads_are_told_as_not_compared(diff_of, tmp_path):
    for name, parallel in (("one.py", "False"), ("two.py", "True")):
        (tmp_path / name).write_text(THREAD.replace("PARALLEL", parallel))
    clean = diff_of("one.py", "one.py", "--strict")
    assert (clean.returncode, clean.stderr) == (0, "")
    for strict in ([], ["--strict"]):
        done = diff_of("one.py", "two.py", *strict)
        assert done.returncode == 4, done.stdout
        assert re.search(rf"\nno difference in what was compared \(.*\); not compared: {CALLS}", done.stdout)
        reference = diff_of("two.py", "one.py", *strict)
        assert reference.returncode == 4
        assert re.search(rf"not compared: {CALLS}: .* in the reference\n", reference.stdout)


def test_strict_of_a_recording_is_4_where_a_part_was_not_recorded(diff, tmp_path):
    (tmp_path / "two.py").write_text(THREAD.replace("PARALLEL", "True"))
    assert diff("--record", "plain", "two.py").returncode == 0
    strict = diff("--record", "strict", "--strict", "two.py")
    assert strict.returncode == 4
    assert re.search(rf"^amanda: --strict: diff did not look at {CALLS}", strict.stderr)
    assert operators_in(tmp_path / "strict") == operators_in(tmp_path / "plain")


# ---- ends --------------------------------------------------------------------------------------------------------------

ENDS = """
import os, signal, torch
torch.relu(torch.ones(3))
os.chdir("/")
END
raise AssertionError
"""


def operators_in(folder, *, interrupted=False):
    record = Record(folder)
    assert record.is_complete != interrupted
    return [record.stations[i].operator for i, _ in record.executions]


@pytest.mark.parametrize(
    ("end", "status", "told"),
    [
        ("os._exit(5)", 3, "amanda diff: ends.py ended with status 5\n"),
        ("os._exit(0)", 0, ""),
        ("os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM, "amanda diff: ends.py ended with status 143\n"),
        ("os.kill(os.getpid(), signal.SIGINT)", -signal.SIGINT, "\nKeyboardInterrupt\n"),
    ],
)
def test_a_record_has_all_that_ran_whatever_ends_the_program(diff, tmp_path, end, status, told):
    (tmp_path / "ends.py").write_text(ENDS.replace("END", end))
    done = diff("--record", "ref", "ends.py")
    assert (done.returncode, done.stdout) == (status, "")
    assert done.stderr.endswith(told)
    assert bool(done.stderr) == bool(told)
    assert operators_in(tmp_path / "ref", interrupted=status != 0) == ["aten::ones", "aten::relu"]


def test_what_was_found_is_printed_whatever_ends_the_program(diff, tmp_path):
    with Recorder(tmp_path / "ref") as made, amanda.apply(made):
        torch.relu(torch.ones(4))
    (tmp_path / "ends.py").write_text(ENDS.replace("END", "os._exit(0)"))
    done = diff("--against", "ref", "--json", "rows.json", "ends.py")
    assert done.returncode == 1, done.stderr
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert f"\n{len(rows)} differences in 0 operators, 0 results; not compared: anything at all" in done.stdout
    assert {row["name"] for row in rows} == {"aten::ones", "aten::relu"}


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_a_comparison_that_is_stopped_leaves_nothing(tmp_path, stop):
    (tmp_path / "waits.py").write_text("import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(100)\n")
    (tmp_path / "tmp").mkdir()
    process = subprocess.Popen(
        [sys.executable, "-m", "amanda", "diff", "waits.py", "waits.py"],
        cwd=tmp_path,
        env=os.environ | {"TMPDIR": str(tmp_path / "tmp")},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    recording = int(process.stdout.readline())
    assert len(os.listdir(tmp_path / "tmp")) == 1
    if stop == signal.SIGINT:  # as a terminal does
        os.killpg(process.pid, stop)
    else:
        process.send_signal(stop)
    _, errors = process.communicate()
    assert process.returncode == -stop
    with pytest.raises(ProcessLookupError):
        os.kill(recording, 0)
    assert os.listdir(tmp_path / "tmp") == []
    assert errors.count("KeyboardInterrupt") == (stop == signal.SIGINT), errors


def test_a_signal_that_stops_the_recording_thread_loses_at_most_what_it_adds(tmp_path, monkeypatch):
    monkeypatch.setattr(recorder, "PATIENCE", 0.01)
    made = Recorder(tmp_path / "ref")
    with amanda.apply(made):
        torch.relu(torch.ones(3))
    with made._lock:  # as the signal has left it
        made.close()
    assert operators_in(tmp_path / "ref") == ["aten::ones", "aten::relu"]


def test_a_file_that_cannot_be_written_is_an_error_before_a_program_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.py").write_text("open('it_ran', 'w')")
    with pytest.raises(SystemExit) as stopped:
        main(["diff", "--json", "no/rows.json", "a.py", "a.py"])
    assert stopped.value.code == 2
    assert capsys.readouterr().err.endswith("amanda diff: error: argument --json: can't write 'no/rows.json'\n")
    assert not os.path.exists("it_ran")


EDITED = """
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU({}), torch.nn.Linear(16, 4))
for _ in range(2):
    model(torch.ones(2, 8)).sum().backward()
"""


@pytest.mark.parametrize(("edit", "names"), [("'none'", []), ("'tanh'", ["aten::gelu"])])
def test_operators_of_an_edited_line_that_do_the_same_are_no_difference(diff_of, tmp_path, edit, names):
    (tmp_path / "before.py").write_text(EDITED.format(""))
    (tmp_path / "after.py").write_text(EDITED.format(edit))
    done = diff_of("before.py", "after.py", "--json", "rows.json")
    assert done.returncode == (1 if names else 0), done.stdout
    assert [row["name"] for row in json.loads((tmp_path / "rows.json").read_text())] == names


LAYERS = """
    import torch
    torch.manual_seed(0)
    eps, scale = EPS, SCALE
    layer = lambda: torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.LayerNorm(4, eps=eps))
    net = torch.nn.ModuleDict({"layer": torch.nn.Sequential(*[layer() for _ in range(3)]), "head": torch.nn.Linear(4, 1)})
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net
        def forward(self, x):
            return self.net["head"](self.net["layer"](x)) * scale
    print(Net()(torch.ones(2, 4) * 0.1).sum().item())
"""


def test_one_change_of_all_layers_is_one_row_and_the_largest_comes_first(run_python, tmp_path):
    for name, eps, scale in (("a", "1e-12", "1"), ("b", "1e-05", "5000")):
        code = textwrap.dedent(LAYERS).replace("EPS", eps).replace("SCALE", scale)
        (tmp_path / f"{name}.py").write_text(code)
    done = run_python("-m", "amanda", "diff", "a.py", "b.py")
    assert done.returncode == 1, done.stderr
    lines = done.stdout.splitlines()
    answer = next(line for line in lines if line.startswith("the largest of 2 changes: "))
    assert re.search(
        r"other: 1 -> 5000 in aten::mul.Tensor .*\(1 operator\), which moves results by up to \S+$", answer
    ), answer
    assert lines[lines.index(answer) + 1].startswith("the second run went on with the reference's results: ")
    first, second = [line for line in lines if line.startswith(" aten::")]
    assert first.startswith(" aten::mul.Tensor")
    assert re.match(r" aten::layer_norm +net.layer.\*.1 +eps: 1e-12 -> 1e-05 +\S+ +\S+ +3 +3 ", second), second


def test_what_an_operator_lost_is_not_cut(run_python, tmp_path):
    code = """
    import torch
    q = torch.arange(48.).reshape(1, 2, 4, 6)
    mask = MASK
    torch.nn.functional.scaled_dot_product_attention(q, q, q, attn_mask=mask)
    """
    for name, mask in (("a", "torch.ones(1, 1, 4, 4).tril().bool()"), ("b", "None")):
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(code).replace("MASK", mask))
    done = run_python("-m", "amanda", "diff", "a.py", "b.py")
    assert "attn_mask: tensor bool[1, 1, 4, 4] -> None" in done.stdout


MIXED = """
import torch
x = torch.arange(24, dtype=torch.float32) / 10
def mixed(x):
    z = torch.where(x > 1, torch.full_like(x, 0.5), torch.full_like(x, -0.5))
    return z.to(torch.float16) + x.to(torch.float16)
COMPILE
print(mixed(x).sum().item())
"""


@pytest.mark.slow  # inductor compiles
def test_compiled_code_that_differs_is_named_after_a_comparison(diff_of, diff, tmp_path):
    (tmp_path / "e.py").write_text(MIXED.replace("COMPILE", ""))
    (tmp_path / "c.py").write_text(MIXED.replace("COMPILE", "mixed = torch.compile(mixed)"))
    done = diff_of("e.py", "c.py", "--json", "rows.json")
    assert done.returncode == 1
    before, line, after = done.stdout.partition(
        "[diff] c.py runs once more, to compare the code of its compiled functions"
    )
    assert line
    assert "no difference in what was compared (" in before
    assert "compiled function __main__.mixed (c.py:4): output 0 differs from eager mode by up to" in after
    assert "when compiled as one: aten::to (c.py:6), aten::add (c.py:6)\n" in after
    assert "emulate_precision_casts=True of torch._inductor.config removes it\n" in after
    assert "1 difference from eager mode in 1 graph of 1 compiled function, 1 run, forward\n" in after
    (row,) = json.loads((tmp_path / "rows.json").read_text())
    assert (row["kind"], row["operators"]) == ("compiled code", ["aten::to (c.py:6)", "aten::add (c.py:6)"])
    eager = diff_of("e.py", "c.py", "--eager-only")
    assert (eager.returncode, "runs once more" in eager.stdout) == (4, False)
    right = "mixed = torch.compile(mixed, options={'emulate_precision_casts': True})"
    (tmp_path / "c.py").write_text(MIXED.replace("COMPILE", right))
    alone = diff("--compiled-code", "c.py")
    assert alone.returncode == 0, alone.stdout
    assert alone.stdout.endswith("\nno difference from eager mode in 1 graph of 1 compiled function, 1 run, forward\n")
