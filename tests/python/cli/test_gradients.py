"""`amanda gradients`: the answer, the table, and the exit status."""

import re
import textwrap

import pytest

SCRIPT = """
import sys
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.idle, self.head = (torch.nn.Linear(4, 4) for _ in range(3))

    def forward(self, x):
        x = self.encoder(x).relu()
        if sys.argv[1] == "cut":
            x = x.detach()
        elif sys.argv[1] == "all":
            return self.head(x).detach()
        return self.head(x)

torch.manual_seed(0)
net = Net()
if sys.argv[1] == "right":
    del net.idle
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for _ in range(3):
    optimizer.zero_grad()
    loss = net(torch.ones(2, 4)).sum()
    if sys.argv[1] != "none":
        loss.backward()
    optimizer.step()
sys.exit(int(sys.argv[2]))
"""


@pytest.fixture
def command(tmp_path, run_python):
    (tmp_path / "script.py").write_text(textwrap.dedent(SCRIPT))
    return lambda name, *arguments: run_python("-m", "amanda", name, *arguments)


def test_the_cut_is_named(command):
    done = command("gradients", "--top", "5", "script.py", "cut", "0")
    assert done.returncode == 1, done.stderr
    assert (
        "4 of 6 parameters that require a gradient are not trained, in 3 backward passes:\n"
        "no gradient: encoder.weight, encoder.bias\n"
        "  cut at aten::detach (script.py:13), after aten::relu (script.py:11): detach() returns a tensor without a path\n"
        "no gradient: idle.weight, idle.bias\n"
        "  no operator that was seen used it\n"
    ) in done.stdout
    assert re.search(r"encoder.weight +none +detach +aten::detach \(script.py:13\) +3 +0 +0 +0\n", done.stdout)
    assert "(1 more)" in done.stdout


def test_what_pytorch_refuses_is_explained(command):
    done = command("gradients", "script.py", "all", "0")
    assert done.returncode == 1
    assert "RuntimeError: element 0 of tensors does not require grad" in done.stderr
    assert "1 backward pass until the program failed, 1 of them refused by PyTorch" in done.stdout
    assert "cut at aten::detach (script.py:15), after aten::linear in head (script.py:15): detach()" in done.stdout


@pytest.mark.parametrize(("ends", "status", "until"), [("0", 0, ""), ("2", 3, " until the program failed")])
def test_a_program_that_is_right(command, ends, status, until):
    done = command("gradients", "script.py", "right", ends)
    assert done.returncode == status
    assert f"\nall 4 parameters that require a gradient got one, in 3 backward passes{until}, " in done.stdout


def test_a_program_without_a_backward_pass(command):
    done = command("gradients", "script.py", "none", "0")
    assert done.returncode == 0
    assert re.search(r"^no backward pass was seen, in \d+ operators$", done.stdout, re.MULTILINE)


def test_watch_raises_an_alarm(command):
    done = command("watch", "script.py", "cut", "0")
    assert done.returncode == 0
    assert (
        "alarms: 2\n  no gradient since step 0: encoder.weight, encoder.bias: detach() returns a tensor" in done.stdout
    )
    assert "  no gradient since step 0: idle.weight, idle.bias: no operator that was seen used it\n" in done.stdout
    assert "alarms: none" in command("watch", "script.py", "right", "0").stdout


def test_run_with_the_tool(command):
    done = command("run", "-t", "cuts", "script.py", "cut", "0")
    assert "no gradient: encoder.weight, encoder.bias" in done.stdout, done.stderr
