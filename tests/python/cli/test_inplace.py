"""`amanda inplace`: the finding, and the exit status."""

import re
import textwrap

import pytest

SCRIPT = """
import sys
import torch

class Gated(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = torch.nn.Linear(8, 8)

    def forward(self, x):
        gate = torch.sigmoid(self.gate(x))
        if sys.argv[1] == "wrong":
            gate += 0.1
        return gate.sum()

torch.nn.Sequential(Gated())(torch.randn(4, 8)).backward()
sys.exit(int(sys.argv[2]))
"""


@pytest.fixture
def inplace(tmp_path, run_python):
    (tmp_path / "script.py").write_text(textwrap.dedent(SCRIPT))
    return lambda *arguments: run_python("-m", "amanda", "inplace", "script.py", *arguments)


def test_the_writer_is_named_below_the_error_and_as_the_answer(inplace):
    done = inplace("wrong", "0")
    assert done.returncode == 1
    text = (
        "aten::sigmoid in 0 (script.py:11) saved its output 0 (shape (4, 8), version 0) for SigmoidBackward0, which calls "
        "it 'result'\n"
        "  aten::add_ in 0 (script.py:13) wrote to it: version 0 -> 1\n"
        "  remedy: use add, which returns a new tensor, in place of add_ in script.py:13: x = x + y, not x += y\n"
    )
    assert done.stdout == f"\n{text}"
    assert done.stderr.endswith(f"[inplace] {text}")


@pytest.mark.parametrize(("ends", "status", "until"), [("0", 0, ""), ("2", 3, " until the program failed")])
def test_a_program_without_one(inplace, ends, status, until):
    done = inplace("right", ends)
    assert done.returncode == status
    answer = f'no backward pass raised "modified by an inplace operation"{until}'
    assert re.search(rf"\n{answer}, in \d+ operators\n", done.stdout)


@pytest.mark.parametrize(
    "command",
    [["nan"], ["doctor"], ["run", "-t", "gradients"], ["run", "-t", "profile"], ["run", "-t", "tools.py:Nothing"]],
)
def test_other_commands_name_the_writer(command, tmp_path, run_python):
    (tmp_path / "script.py").write_text(textwrap.dedent(SCRIPT))
    (tmp_path / "tools.py").write_text("import amanda\nclass Nothing(amanda.Tool): pass\n")
    done = run_python("-m", "amanda", *command, "script.py", "wrong", "0")
    assert (
        "\n[inplace] SigmoidBackward0 needs a tensor that it has saved as 'result' (shape (4, 8), version 0)\n"
        "  aten::add_ in 0 (script.py:13) wrote to it: version 0 -> 1\n"
        "  remedy: use add, which returns a new tensor, in place of add_ in script.py:13: x = x + y, not x += y\n"
        "  the line that saved it: amanda inplace script.py wrong 0\n"
    ) in done.stderr


def test_what_the_recorder_sees_counts_for_no_other_tool(tmp_path, run_python):
    (tmp_path / "script.py").write_text("import torch\ntorch.ones(3).add_(1)\ntorch.ones(3).exp()\n")
    (tmp_path / "tools.py").write_text(
        "import amanda\n"
        "class Exp(amanda.Tool):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.add_inst_for_op(lambda context: None, ops='exp')\n"
    )
    done = run_python("-m", "amanda", "run", "-t", "tools.py:Exp", "--coverage", "script.py")
    assert done.stdout.startswith("\n1 operator ran, ")
    assert re.search(r"forward: \d+ dispatched, 1 seen", done.stdout)
