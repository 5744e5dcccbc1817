"""In-place operators whose routines raise."""

import contextlib

import amanda
import pytest
import torch


@pytest.mark.parametrize("recording", [False, True])
@pytest.mark.parametrize("runs_before", [0, 1, 2])
def test_the_tensor_is_changed_when_a_look_at_the_result_fails(recording, runs_before, after):
    def look(y):
        if fails:
            raise ValueError("look")

    fails = False
    with amanda.apply(after("add_", look)):
        for run in range(runs_before + 1):
            x = torch.ones(2, requires_grad=recording) * 1
            fails = run == runs_before
            with pytest.raises(ValueError, match="look") if fails else contextlib.nullcontext():
                x.add_(1)
    assert x.tolist() == [2.0, 2.0]
    assert x._version == 1
    if recording:
        assert x.grad_fn.name() == "AddBackward0"


def test_the_tensor_is_changed_when_an_analysis_of_the_result_fails():
    tool = amanda.Tool()
    tool.add_inst_for_op(lambda context: 1 / 0, ops="add_", require_outputs=True)
    x = torch.ones(2, requires_grad=True) * 1
    with amanda.apply(tool), pytest.raises(ZeroDivisionError):
        x.add_(1)
    assert x.tolist() == [2.0, 2.0]


@pytest.mark.parametrize("recording", [False, True])
def test_edits_made_before_the_failure_remain(recording, after):
    def fail(y):
        raise ValueError("late")

    late = after("add_", fail, name="late")
    late.depends_on(after("add_", lambda y: y * 10, name="early"))
    x = torch.ones(2, requires_grad=recording) * 1
    with amanda.apply(late), pytest.raises(ValueError, match="late"):
        x.add_(1)
    assert x.tolist() == [20.0, 20.0]


def test_nothing_is_changed_when_a_routine_before_it_fails(before):
    def fail(*values):
        raise ValueError("early")

    x = torch.ones(2, requires_grad=True) * 1
    with amanda.apply(before("add_", fail)), pytest.raises(ValueError, match="early"):
        x.add_(1)
    assert (x.tolist(), x._version) == ([1.0, 1.0], 0)
