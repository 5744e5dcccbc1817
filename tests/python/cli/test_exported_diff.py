"""`amanda diff script.py model.pt2`: the file on the program's own call of the model."""

from __future__ import annotations

import json

import amanda
import pytest
import torch
from amanda.cli.exported_diff import FirstCall
from torch import nn

AGREE = (
    "no difference: all tensors that the first call of Net returns are equal, bit for bit; later calls and gradients were "
    "not compared"
)
SCRIPT = """
import sys
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.drop = nn.Linear(4, 4), nn.LayerNorm(4), nn.Dropout(0.5)

    def forward(self, x, scale):
        return self.drop(self.norm(self.first(x).relu())) * scale

torch.manual_seed(0)
net = Net()
if sys.argv[1] == "export":
    batch = torch.export.Dim("batch")
    exported = torch.export.export(net, (torch.ones(2, 4), torch.ones(4)), dynamic_shapes=({0: batch}, None))
    torch.export.save(exported, "net.pt2")
elif sys.argv[1] != "nothing":
    if sys.argv[1] == "eps":
        net.norm.eps = 0.1
    net(torch.randn(3, 4), scale=torch.full((4,), 2.0)).sum().backward()
    print("trained", sys.argv[2:])
    sys.exit(7 if sys.argv[1] == "fails" else 0)
"""


@pytest.fixture
def diff(tmp_path, run_python):
    (tmp_path / "script.py").write_text(SCRIPT)
    assert run_python("script.py", "export").returncode == 0
    return lambda *arguments: run_python("-m", "amanda", "diff", *arguments)


def test_the_command(diff, tmp_path):
    same = diff("script.py", "net.pt2", "same", "more")  # in training mode: dropout draws the same numbers
    assert same.returncode == 0, same.stderr
    assert same.stdout == f"trained ['more']\n\n{AGREE}\n"

    other = diff("--json", "rows.json", "net.pt2", "script.py", "eps")
    assert other.returncode == 1, other.stderr
    assert "the only change: eps: 0.1 -> 1e-05, cudnn_enable: True -> False in aten::layer_norm at norm" in other.stdout
    (row,) = json.loads((tmp_path / "rows.json").read_text())
    assert (row["name"], row["module_path"]) == ("aten::layer_norm", "norm")

    nothing = diff("script.py", "net.pt2", "nothing")
    assert nothing.returncode == 4, nothing.stderr
    message = "\nnothing was compared: the program has called no Net, which is the model in 'net.pt2'\n"
    assert nothing.stdout == message
    assert diff("script.py", "net.pt2", "fails").returncode == 5


# ---- the model and its call -------------------------------------------------------------------------------------------


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Linear(4, 4), nn.LayerNorm(4)

    def forward(self, x, scale=None, *, shift=0.0):
        y = self.norm(self.first(x).relu())
        return (y if scale is None else y * scale) + shift


class Around(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.parts = nn.ModuleList([net])

    def forward(self, *args, **kwargs):
        return self.parts[0](*args, **kwargs)


@pytest.fixture
def compared(tmp_path):
    """compared(program, model, *args, **kwargs): the tool, after the program ran. The model is exported on these."""

    def run(program, model, *args, **kwargs):
        path = str(tmp_path / "model.pt2")
        torch.export.save(torch.export.export(model, args, kwargs), path)
        (tmp_path / "record").mkdir()
        calls = FirstCall(path, str(tmp_path / "record"), {})
        with amanda.apply(calls):
            program()
        return calls

    return run


x, scale = torch.randn(2, 4), torch.full((4,), 2.0)


def test_the_first_call_is_compared_with_its_arguments_however_they_are_given(compared):
    net = Net()
    calls = compared(lambda: (net(x, scale=scale), net(x)), net, x, scale)
    assert calls.agreement == AGREE


@pytest.mark.parametrize("around", [False, True])
def test_a_fault_is_the_only_row(compared, around):
    net = Net()
    program = Around(net) if around else net

    def changed():
        with torch.no_grad():
            net.first.weight[0] += 1
        program(x, scale)

    calls = compared(changed, net, x, scale)
    assert not calls.agreement
    (row,) = calls.diff.rows()
    assert (row.name, row.module_path) == ("aten::linear", "parts.0.first" if around else "first")
    assert "first.weight" in row.note


def test_a_step_that_the_file_lacks_is_a_row(compared):
    net = Net()
    without, net.forward = net.forward, lambda x: torch.tanh(without(x))
    calls = compared(lambda: net(x), Net(), x)
    assert "aten::tanh" in [row.name for row in calls.diff.rows() if row.kind == "only in reference"]


def test_the_programs_results_and_random_numbers_are_its_own(compared):
    net = Net()
    torch.manual_seed(3)
    expected = net(x), torch.rand(3)
    net.norm.eps = 0.5
    changed = net(x)
    found = []

    def program():
        torch.manual_seed(3)
        found.extend((net(x), torch.rand(3)))

    net.norm.eps = 1e-5
    calls = compared(lambda: (setattr(net.norm, "eps", 0.5), program()), net, x)
    assert torch.equal(found[0], changed)
    assert torch.equal(found[1], expected[1])
    assert calls.diff.rows()


def test_what_was_not_compared_is_said(compared):
    net = Net()
    more = compared(lambda: net(x, shift=1.0), net, x)
    assert more.diff is None
    assert more.why_not == (
        "the model in the file fails on the program's arguments: TypeError: the program gives shift, which it does not take"
    )


def test_a_file_that_lacks_an_argument(compared):
    net = Net()
    calls = compared(lambda: net(x), net, x, scale)
    assert "it takes" not in calls.why_not  # None is given, which the file's model fails on
    assert calls.diff is None
    assert calls.why_not.startswith("the model in the file fails on the program's arguments: ")


class Writes(nn.Module):
    def forward(self, x, cache):
        cache += 1
        return x * cache


def test_an_argument_that_the_model_writes_to(compared):
    model = Writes()
    by_position = compared(lambda: model(x, torch.ones(4)), model, x, torch.ones(4))
    assert by_position.agreement


def test_an_argument_by_name_that_the_model_writes_to(compared):
    model = Writes()
    calls = compared(lambda: model(x, cache=torch.ones(4)), model, x, torch.ones(4))
    assert calls.diff is None
    assert calls.why_not == "Writes writes to an argument that is given by name: give it by position"


class Fails(nn.Module):
    def forward(self, x):
        if x.shape[0] == 3:
            raise LookupError("three")
        return x + 1


@pytest.mark.filterwarnings("error")
def test_a_call_that_fails_is_the_programs_error(compared):
    model = Fails()

    def program():
        with pytest.raises(LookupError, match="three"):
            model(torch.ones(3))

    calls = compared(program, model, torch.ones(2))
    assert calls.why_not == "the call of Fails has failed, or returned nothing"


class Guarded:
    """Cannot be copied."""

    def __deepcopy__(self, memo):
        raise LookupError("mine")


def test_arguments_that_cannot_be_copied_leave_the_program_as_it_is(compared):
    net, found = Net(), []
    net.forward, forward = lambda x, guard=None: forward(x), net.forward
    calls = compared(lambda: found.append(net(x, Guarded())), Net(), x)
    assert torch.equal(found[0], forward(x))
    assert calls.why_not == "the arguments can't be copied: LookupError: mine"


class Net2(nn.Module):
    def forward(self, x):
        return x * 0.0 / 1.0


@pytest.mark.parametrize(("changed", "agrees"), [(lambda x: x * 0.0, True), (lambda x: x * -0.0, False)])
def test_equal_are_equal_bits(compared, changed, agrees):
    model = Net2()
    exported, model.forward = Net2(), lambda x: changed(x) / 1.0
    calls = compared(lambda: model(torch.tensor([1.0, float("nan")])), exported, torch.ones(2))
    assert bool(calls.agreement) == agrees
