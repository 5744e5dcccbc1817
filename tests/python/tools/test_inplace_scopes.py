"""Who wrote in place, in scopes of other tools: the command that tells it, and WriteRecorder."""

import sys

import amanda
import pytest
import torch
from amanda.tools.inplace import InplaceErrors
from amanda.tools.inplace.write_recorder import WriteRecorder
from amanda.tools.statistics import OpStatistics
from inplace_programs import CASES, MODIFIED, leaf, out, result
from torch import nn


def test_a_scope_of_other_tools_says_how_to_learn_more(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["train.py", "--rate", "3"])
    with pytest.raises(RuntimeError, match=MODIFIED) as caught, amanda.apply(OpStatistics()):
        result()
    assert caught.value.__notes__ == [
        "[inplace] which operator wrote was not recorded; `amanda inplace train.py --rate 3` names it, and so does "
        "amanda.tools.inplace.InplaceErrors() in a scope around the forward and the backward pass"
    ]
    with pytest.raises(RuntimeError, match=MODIFIED) as caught:
        result()
    assert not hasattr(caught.value, "__notes__")


def test_the_innermost_scope_writes_the_note_and_all_have_the_finding():
    outer, inner = WriteRecorder(), InplaceErrors()
    with pytest.raises(RuntimeError, match=MODIFIED) as caught, amanda.apply(outer), amanda.apply(inner):
        result()
    (whole,), (writer,) = inner.findings(), outer.findings()
    assert caught.value.__notes__ == [f"[inplace] {whole}"]
    assert (writer.saver, writer.backward_op, writer.needed) == (None, "ExpBackward0", "result")
    assert [one.place.source for one in writer.writes] == [one.place.source for one in whole.writes]


@pytest.mark.parametrize(
    "program", [program for program, *_ in CASES if program is not out], ids=lambda one: one.__name__
)
def test_the_recorder_of_writes_names_the_same_writers(program):
    tool, whole = WriteRecorder(), InplaceErrors()
    with pytest.raises(RuntimeError, match=MODIFIED), amanda.apply(tool), amanda.apply(whole):
        program()
    assert [one.place for one in tool.findings()[0].writes] == [one.place for one in whole.findings()[0].writes]


def test_the_recorder_of_writes_names_no_wrong_one():
    """It does not see the write by `out=`, and does not name the one before it."""

    def program():
        y = leaf(4).exp()
        y.add_(1)
        with torch.no_grad():
            torch.add(torch.ones(4), 1, out=y.detach())
        y.sum().backward()

    tool = WriteRecorder()
    with pytest.raises(RuntimeError, match=MODIFIED) as caught, amanda.apply(tool):
        program()
    assert (tool.findings(), tool.unexplained) == ([], 1)
    assert "its operator is not one that is named as those that write are" in caught.value.__notes__[0]


def test_an_operator_that_writes_nothing_has_no_routine_of_the_recorder():
    scope = amanda.apply(WriteRecorder())
    model, x = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Softmax(-1)), torch.randn(2, 4)
    with scope:
        model(x).sum().backward()
        x.add_(1)
    found = {one.operator.partition(".")[0] for one in scope.describe().rows()}
    assert "aten::add_" in found
    assert all(name.endswith("_") for name in found)  # those that make the first gradient are among them
