"""Operators that return views: an edit is never silently without effect."""

# ruff: noqa: SIM117 -- outside the error that is expected, inside where it comes from

import amanda
import pytest
import torch
from by_hand import doubled

VIEW = (
    "its result is a view, and a value put in its place would no longer share memory with the operator's input; pass "
    "allow_view=True if nothing relies on that"
)


def test_a_view_is_not_edited_by_accident(after, replace, says):
    x = torch.randn(2, 3)
    with says(amanda.Error, f"[action] tool: doubled after aten::transpose: output 0: {VIEW}"):
        with amanda.apply(after("transpose", doubled)):
            x.transpose(0, 1)
    with says(amanda.Error, f"[context] tool: replace_op on aten::transpose: {VIEW}"):
        with amanda.apply(replace("transpose", doubled)):
            x.transpose(0, 1)


def test_a_view_is_edited_on_request(after, replace):
    x = torch.randn(2, 3)
    with amanda.apply(after("transpose", doubled, allow_view=True)):
        assert torch.equal(x.transpose(0, 1), x.T * 2)
    with amanda.apply(replace("transpose", lambda x, *dims: x.T * 2, allow_view=True)):
        assert torch.equal(x.transpose(0, 1), x.T * 2)


def test_looking_at_a_view_is_always_allowed(recorder):
    tool, x = recorder(), torch.randn(2, 3)
    with amanda.apply(tool):
        y = x.transpose(0, 1)
    assert y._is_view()
    assert y._base is x
    assert y.data_ptr() == x.data_ptr()
    assert tool.trace == ["transpose?", "transpose<", "transpose>"]


def test_an_operator_that_only_may_return_a_view_is_edited_where_it_copies(after, says):
    x = torch.randn(2, 3)
    with amanda.apply(after("reshape", doubled)):
        assert torch.equal(x.T.reshape(6), x.T.flatten() * 2)
        with says(amanda.Error, f"[action] tool: doubled after aten::reshape: output 0: {VIEW}"):
            x.reshape(6)


def test_a_list_of_views_is_edited_on_request(after, says):
    def routine(parts):
        return [part * 2 for part in parts]

    x = torch.ones(2, 2)
    with says(amanda.Error, f"[action] tool: routine after aten::unbind: output 0: {VIEW}"):
        with amanda.apply(after("unbind", routine)):
            torch.unbind(x)
    with amanda.apply(after("unbind", routine, allow_view=True)):
        assert [part.tolist() for part in torch.unbind(x)] == [[2.0, 2.0]] * 2


OPERAND_OF_VIEW = (
    "the operator's result is a view of it, and would no longer share memory with the program's tensor; pass "
    "allow_view=True if nothing relies on that"
)


def same_again(*values):
    return [v.clone() if isinstance(v, torch.Tensor) else None for v in values]


@pytest.mark.parametrize("differentiable", [False, True])
@pytest.mark.parametrize(
    ("ops", "view"),
    [
        ("view", lambda x: x.view(6)),
        ("transpose", lambda x: x.transpose(0, 1)),
        ("reshape", lambda x: x.reshape(6)),
        ("to", lambda x: x.to(torch.float32)),
        ("detach", lambda x: x.detach()),
        ("unbind", lambda x: x.unbind()[0]),
        ("slice", lambda x: x[1:]),
    ],
)
def test_what_a_view_is_made_of_is_not_edited_by_accident(ops, view, differentiable, before, says):
    x = torch.zeros(2, 3)
    text = f"[action] tool: same_again before aten::{ops}: input 0 (self): {OPERAND_OF_VIEW}"
    with says(amanda.Error, text), amanda.apply(before(ops, same_again, differentiable=differentiable)):
        view(x)
    with amanda.apply(before(ops, lambda *values: None)):
        view(x).add_(1)
    assert x.sum().item() > 0  # looking cuts nothing
    with amanda.apply(before(ops, same_again, allow_view=True, differentiable=differentiable)):
        torch.testing.assert_close(view(x), view(x.clone()))


def test_the_operand_of_an_operator_that_copies_is_edited(before):
    x = torch.ones(2, 3)
    with amanda.apply(before(["reshape", "to", "contiguous"], doubled, [0])):
        assert x.T.reshape(6).tolist() == [2.0] * 6
        assert x.to(torch.float64).tolist() == [[2.0] * 3] * 2
        assert x.T.contiguous().tolist() == [[2.0] * 2] * 3


def test_the_other_operands_of_a_view_are_edited(before):
    x = torch.zeros(4)
    with amanda.apply(before("view", lambda size: [4, 1], ["size"])):
        y = x.view(2, 2)
    y.add_(1)
    assert (y.shape, x.tolist()) == ((4, 1), [1.0] * 4)


def test_an_edit_of_a_view_is_refused_in_inference_mode_too(after):
    x = torch.ones(4)
    with (
        torch.inference_mode(),
        amanda.apply(after("view", lambda y: y + 1)),
        pytest.raises(amanda.Error, match="is a view"),
    ):
        x.view(2, 2)
    with torch.inference_mode():
        made = torch.ones(4)
        with amanda.apply(after("view", lambda y: y + 1)), pytest.raises(amanda.Error, match="is a view"):
            made.view(2, 2)
