"""In-place operators whose tensor cannot be edited, or only from the next run on."""

# ruff: noqa: B007, SIM117 -- routines that read the loop's variable; outside the error that is expected

import contextlib

import amanda
import torch
from by_hand import StraightThrough, doubled, edit, gradients, relu_in_place


def test_the_shape_of_an_in_place_tensor_cant_change(after, says):
    def routine(x):
        return x[:1]

    text = "the shape of an in-place operator's tensor can't change: it is [2], the value has [1]"
    with says(amanda.Error, f"[action] tool: routine after aten::relu_: output 0: {text}"):
        with amanda.apply(after("relu_", routine)):
            torch.ones(2).relu_()


def test_nothing_can_stand_for_a_change_of_shape_in_place(before, after, replace, says):
    text = "it changes its tensor's shape or storage in place; no other value can replace its result"
    with says(amanda.Error, f"[action] tool: doubled before aten::t_: input 0 (self): {text}"):
        with amanda.apply(before("t_", doubled)):
            torch.ones(2, 3).t_()
    with says(amanda.Error, f"[action] tool: doubled after aten::t_: output 0: {text}"):
        with amanda.apply(after("t_", doubled)):
            torch.ones(2, 3).t_()
    with says(amanda.Error, f"[context] tool: replace_op on aten::t_: {text}"):
        with amanda.apply(replace("t_", doubled, allow_view=True)):
            torch.ones(2, 3).t_()


def test_a_late_edit_is_refused_once_while_autograd_records(after, says):
    def routine(y):
        return edit(y) if editing else None

    editing = False
    tool = after("relu_", routine)
    plain = gradients(lambda x, w: torch.relu(x @ w) * 3)
    edited = gradients(lambda x, w: StraightThrough.apply(torch.relu(x @ w), edit) * 3)
    text = (
        "[action] tool: routine after aten::relu_: output 0: the routine only looked at this in-place operator "
        "before, so it ran in place, and autograd has saved its result; an edit can't be put in any more. It is "
        "prepared for from the next run on"
    )
    results = []
    with amanda.apply(tool):
        for editing, refused in [(False, False), (True, True), (True, False), (False, False)]:
            with says(amanda.Error, text) if refused else contextlib.nullcontext():
                results.append(gradients(relu_in_place))  # one place of the program
    torch.testing.assert_close(results, [plain, edited, plain])


def test_a_late_edit_without_gradients_needs_no_preparation(after):
    def routine(y):
        return edit(y) if editing else None

    tool = after("relu_", routine)
    with amanda.apply(tool):
        for editing, expected in [(False, 1.0), (True, 3.0), (False, 1.0), (True, 3.0)]:
            x = torch.ones(1)
            x.relu_()
            assert x.item() == expected


def test_the_result_of_a_trial_run_takes_hooks_and_requires_a_gradient(after):
    seen = []

    def look(value):
        seen.append(value.requires_grad)
        value.register_hook(lambda gradient: None)

    w = torch.ones(2, requires_grad=True)
    with amanda.apply(after("relu_", look)):
        for _ in range(2):
            torch.relu_(w * 1).sum().backward()
    assert seen == [True, True]
    assert w.grad.tolist() == [2, 2]


def test_a_differentiable_edit_decided_after_the_first_run_is_differentiable_in_it():
    class Triple(amanda.Tool):
        def __init__(self):
            super().__init__()
            self.add_inst_for_op(self.analyze, ops="relu_", require_outputs=True)

        def analyze(self, context):
            context.insert_after_op(lambda value: value * 3, differentiable=True)

    with amanda.apply(Triple()):
        for _ in range(2):
            w = torch.ones(2, requires_grad=True)
            torch.relu_(w * 1).sum().backward()
            assert w.grad.tolist() == [3, 3]


def test_looking_without_recording_leaves_a_later_edit_possible(after):
    edits = []
    w = torch.ones(2, requires_grad=True)
    with amanda.apply(after("relu_", lambda value: value * 2 if edits else None)):
        for training in (False, True):
            edits[:] = [1] if training else []
            with torch.set_grad_enabled(training):
                y = w * 1
                torch.relu_(y)
    y.sum().backward()
    assert y.tolist() == [2, 2]
    assert w.grad.tolist() == [1, 1]


def test_a_custom_in_place_operator_runs_once_under_a_tool_that_looks(after):
    runs = []
    library = torch.library.Library("amanda_once", "DEF")
    library.define("add_one_(Tensor(a!) x) -> Tensor(a!)")

    @torch.library.impl(library, "add_one_", "CPU")
    def add_one_(x):
        runs.append(1)
        return x.add_(1)

    with amanda.apply(after("add_one_", lambda value: None)), torch.no_grad():
        torch.ops.amanda_once.add_one_(torch.zeros(1))
    assert len(runs) == 1
