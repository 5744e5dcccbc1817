"""A shipped tool that is copied into another package works there, and finds the same."""

import json
import re
import shutil
import subprocess
import sys

import pytest
from amanda.toolkit.imports import check
from repository import ROOT

TOOLS = ROOT / "python" / "amanda" / "tools"

# By a name of its folder: the tools that are copied into the package `workshop` there, and a program next to it.
FLOPS = """
import amanda
import torch
from workshop.flops import Flops

flops = Flops()
with amanda.apply(flops), torch.no_grad():
    torch.nn.Linear(8, 3)(torch.ones(5, 8)) @ torch.ones(3, 2)
print(flops.total, flops.by_operator(), Flops.__module__)
"""

MEMORY = """
import amanda
import torch
from workshop.memory import PeakMemory

memory = PeakMemory()
with amanda.apply(memory):
    model = torch.nn.Linear(64, 32)
    for _ in range(2):  # in the second, all gradients are there
        model(torch.ones(4, 64)).sum().backward()
kinds = {row.name: row.bytes for row in memory.rows("kind")}
print(kinds["parameter"], kinds["gradient"], PeakMemory.__module__)
"""

HISTORY = """
import amanda
import torch
from workshop.history import History

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.25)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
history, means = History(model, limits=None), []
with amanda.scheduled(history) as run:
    for _ in range(3):
        hidden = model[1](model[0](torch.randn(16, 4)))
        means.append(hidden.detach().double().mean().item())
        scaler.scale(model[2](hidden).square().mean()).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        run.step()

def series(tool, name, quantity):
    rows = history.rows("step")
    return [row.value for row in rows if (row.tool, row.name, row.quantity) == (tool, name, quantity)]

updates, gradients = (series("parameters", "0.weight", f"{what}_norm") for what in ("update", "gradient"))
near = lambda one, other: abs(one - other) < 1e-5 * abs(other)
assert len(updates) == 3 and all(near(update, 0.25 * norm) for update, norm in zip(updates, gradients, strict=True))
found = series("statistics", "aten::relu", "mean")
assert len(found) == 3 and all(map(near, found, means))
print(history.__class__.__module__)
"""

PROFILE = """
import sys

import amanda
import torch
from workshop.profile import Profile

sys.path.append("site-packages")
import library

profile = Profile()
with amanda.apply(profile):
    for _ in range(3):
        library.call(torch.ones(2))  # this line
print([(row.name, row.calls) for row in profile.rows("user_line")])
"""

PROGRAMS = {
    "flops": (["flops"], FLOPS),
    "memory": (["memory"], MEMORY),
    "history": (["history", "statistics", "gradients", "cuts"], HISTORY),
    "profile": (["profile"], PROFILE),
}

# Runs them one after the other, in a process in which the originals are not there.
RUN = """
import contextlib, io, json, os, runpy, sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition("amanda.tools.")[2].partition(".")[0] in copied:
            raise ImportError(f"{name} is copied: its original is not there")

folders, copied = json.loads(sys.argv[1])
sys.meta_path.insert(0, Absent())
found = {}
for folder in folders:
    os.chdir(folder)
    sys.path[0] = folder
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        runpy.run_path("program.py", run_name="__main__")
    found[os.path.basename(folder)] = printed.getvalue()
    for name in [name for name in sys.modules if name.partition(".")[0] == "workshop"]:
        del sys.modules[name]
print(json.dumps(found))
"""


def copy(tools, package):
    package.mkdir()
    for tool in tools:
        at = TOOLS / tool
        shutil.copytree(at, package / tool) if at.is_dir() else shutil.copy(at.with_suffix(".py"), package)
    for path in package.rglob("*.py"):
        path.write_text(re.sub(r"\bamanda\.tools\b", "workshop", path.read_text()))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("copies")
    for name, (tools, program) in PROGRAMS.items():
        (made / name).mkdir()
        copy(tools, made / name / "workshop")
        (made / name / "program.py").write_text(program)
    library = made / "profile" / "site-packages" / "library.py"
    library.parent.mkdir()
    library.write_text("def call(x):\n    return x.relu()\n")
    return made


@pytest.fixture(scope="module")
def found(folder):
    """What each program printed."""
    copied = sorted({tool for tools, _ in PROGRAMS.values() for tool in tools})
    given = json.dumps([[str(folder / name) for name in PROGRAMS], copied])
    done = subprocess.run([sys.executable, "-W", "error", "-c", RUN, given], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_copied_takes_public_names_only(folder, name):
    assert check(folder / name / "workshop") == []


def test_flops(found):
    linear, product = 2 * 5 * 8 * 3, 2 * 5 * 3 * 2
    expected = f"{linear + product} {{'aten::addmm': {linear}, 'aten::mm': {product}}} workshop.flops.flops\n"
    assert found["flops"] == expected


def test_memory(found):
    parameters = 4 * (64 * 32 + 32)
    assert found["memory"] == f"{parameters} {parameters} workshop.memory.peak_memory\n"


def test_history_with_the_tools_it_is_built_on(found):
    assert found["history"] == "workshop.history.history\n"


def test_profile_names_lines_of_the_program_not_its_own(found):
    (line,) = [number for number, text in enumerate(PROGRAMS["profile"][1].splitlines(), 1) if "this line" in text]
    assert f"program.py:{line}', 6)" in found["profile"]
