"""`amanda nan`: the finding, and the exit status."""

import re
import textwrap

import pytest

SCRIPT = """
import sys
import torch

class Norm(torch.nn.Module):
    def forward(self, x):
        return x / x.std()

model = torch.nn.Sequential(torch.nn.Linear(2, 2), Norm())
torch.nn.init.zeros_(model[0].weight)
torch.nn.init.constant_(model[0].bias, float(sys.argv[1]))
if float(sys.argv[1]):
    model[0].bias.data[0] = 3
model(torch.ones(3, 2))
print("ran")
sys.exit(int(sys.argv[2]))
"""


@pytest.fixture
def nan(tmp_path, run_python):
    (tmp_path / "script.py").write_text(textwrap.dedent(SCRIPT))
    return lambda *arguments: run_python("-m", "amanda", "nan", *arguments)


def test_the_program_ends_at_the_operator(nan):
    found = nan("script.py", "0", "0")
    assert found.returncode == 1
    assert "ran" not in found.stdout
    assert "[nan] aten::div produced the first NaN in 1 (" in found.stderr
    assert "script.py:7), forward\n  return x / x.std()\n" in found.stderr
    assert "cause: input other is zero" in found.stderr
    assert found.stdout.endswith("NaN: 1 operator produced some\n")


def test_all_goes_on_to_the_end(nan):
    found = nan("--all", "script.py", "0", "0")
    assert found.returncode == 1
    assert found.stdout.startswith("ran\n\nNaN: 1 operator produced some")
    assert "\n\naten::div produced the first NaN in 1 (script.py:7), forward\n" in found.stdout
    assert found.stdout.endswith("\n  in 1 run\n")


def test_two_operators_of_one_line_are_told_apart(run_python, tmp_path):
    (tmp_path / "script.py").write_text("import torch\nx = torch.zeros(2)\n(x / x).sum(), (x / x).sum()\n")
    found = run_python("-m", "amanda", "nan", "--all", "script.py").stdout
    assert found.startswith("\nNaN: 2 operators produced some, and 2 runs of others passed it on\n")
    assert found.count("produced the first NaN") == found.count("produced a NaN") == 1
    assert len(set(re.findall(r"\n  in 1 run, of the operator with id (0x[0-9a-f]+)\n", found))) == 2


def test_run_says_that_there_was_none(run_python, tmp_path):
    (tmp_path / "script.py").write_text("import torch\ntorch.ones(2).exp()\n")
    done = run_python("-m", "amanda", "run", "-t", "nan", "script.py")
    assert done.stdout.endswith("\nnan\nno NaN was produced, in 2 results of 2 operators\n")


def test_without_a_nan_it_says_how_much_was_looked_at(nan):
    clean = nan("script.py", "1", "0")
    assert clean.returncode == 0
    assert re.search(r"\nno NaN was produced, in [\d,]+ results of [\d,]+ operators\n$", clean.stdout)
    allowed = nan("--allow-op", "div", "script.py", "0", "0")
    assert allowed.returncode == 0


@pytest.mark.parametrize("end", ["sys.exit(3)", "sys.exit('no')", "import no_such_module", "os._exit(3)", "1 / 0"])
def test_a_program_that_fails_by_itself_is_no_finding(end, nan, tmp_path):
    (tmp_path / "fails.py").write_text(f"import os, sys, torch\ntorch.ones(2).relu()\n{end}\n")
    failed = nan("fails.py")
    assert failed.returncode == 3
    assert re.search(r"\nno NaN was produced until the program failed, in ", failed.stdout)
    assert re.search(r"amanda nan: fails.py ended with status [13]\n$", failed.stderr)


COMPILED = """
import torch

def f(x):
    return x.relu() * 2

torch.compile(f, backend="eager")(torch.ones(3))
"""


@pytest.mark.parametrize(
    ("policy", "why"),
    [
        ("eager", "ran eagerly, in place of the compiled code"),
        ("opaque", "ran compiled, and none of its operators was shown"),
    ],
)
def test_other_words_and_a_status_where_something_was_not_looked_at(policy, why, nan, tmp_path):
    (tmp_path / "compiled.py").write_text(COMPILED)
    told = nan("--strict", f"--compiled={policy}", "compiled.py")
    assert told.returncode == 4
    assert re.search(rf"amanda: --strict: NaNSentinel did not look at 1 compiled function {why}", told.stderr)
    assert "no NaN was produced" not in told.stdout
    pattern = rf"no NaN was found in .* operators?; not looked at: 1 compiled function {why}: __main__.f \(.*:4\)"
    assert re.search(pattern, told.stdout)
    if policy == "eager":
        assert nan(f"--compiled={policy}", "compiled.py").returncode == 0


def test_strict_of_a_clean_run_is_0_and_a_finding_stays_1(nan):
    assert nan("--strict", "script.py", "1", "0").returncode == 0
    assert nan("--strict", "script.py", "0", "0").returncode == 1


HOOK = """
import torch

layer = torch.nn.Linear(2, 2)
layer.weight.register_hook(lambda gradient: gradient / 0 * 0)
layer(torch.ones(1, 2)).sum().backward()
"""

SPARSE = """
import torch

(-torch.eye(2)).to_sparse().sqrt().to_dense()
"""


@pytest.mark.parametrize(
    ("program", "head", "last"),
    [
        (
            HOOK,
            "was in the gradient that reached parameter 'weight'",
            "1 operator got some that no operator seen here produced",
        ),
        (
            SPARSE,
            "was seen in the result of aten::to_dense",
            "1 operator had some, and was given what no tool can read; not looked at: 3 values: a sparse tensor",
        ),
    ],
    ids=["hook", "sparse"],
)
def test_what_no_operator_is_known_to_have_produced_is_a_finding_and_said_so(program, head, last, nan, tmp_path):
    (tmp_path / "program.py").write_text(program)
    found = nan("--strict", "program.py")
    assert found.returncode == 1
    assert head in found.stderr
    assert "produced the first" not in found.stderr
    assert found.stdout.endswith(f"\nNaN: {last}\n")


LOWERED = """
import torch
from torch._inductor import config
from torch._inductor.lowering import lowerings

aten = torch.ops.aten
config.fx_graph_cache = False
if PLANTED:
    lowerings[aten.sqrt.default] = lowerings[aten.log.default]

def f(x):
    y = x.exp() - 1
    return torch.sqrt(y).sin()

torch.compile(f)(torch.zeros(3))
"""


@pytest.mark.long
@pytest.mark.slow  # inductor compiles
@pytest.mark.parametrize("planted", [True, False])
def test_a_nan_that_only_fused_code_makes_is_named(planted, nan, tmp_path):
    (tmp_path / "lowered.py").write_text(LOWERED.replace("PLANTED", str(planted)))
    done = nan("lowered.py")
    assert done.returncode == int(planted), done.stdout + done.stderr
    assert ("in the code of compiled functions as it runs without tools:" in done.stdout) is planted
    if planted:
        assert (
            "output 0 differs from eager mode (float32, 3 elements): 3 elements are finite in eager mode only"
            in done.stdout
        )
        assert "when compiled as one: aten::sqrt (lowered.py:13)" in done.stdout
