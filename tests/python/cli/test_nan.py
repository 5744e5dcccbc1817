"""`amanda nan`: the finding, and the exit status."""

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
    assert found.stdout.startswith("ran\n\naten::div produced the first NaN in 1 (")


def test_without_a_nan_the_status_is_the_programs(nan):
    found = nan("script.py", "1", "3")
    assert (found.returncode, found.stdout) == (3, "ran\n\nno NaN was produced\n")
    assert nan("script.py", "1", "0").returncode == 0
    assert nan("--allow-op", "div", "script.py", "0", "0").returncode == 0
