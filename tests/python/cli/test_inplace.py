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
    answer = f'no error "modified by an inplace operation" left the scope{until}'
    assert re.search(rf"\n{answer}, in \d+ operators and \d+ backward operators\n", done.stdout)
