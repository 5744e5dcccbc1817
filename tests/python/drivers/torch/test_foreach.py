"""Operators on lists of tensors that work in place."""

# ruff: noqa: SIM117 -- outside the error that is expected, inside where it comes from

import amanda
import pytest
import torch


def test_a_foreach_operator_is_looked_at(recorder):
    tool = recorder(ops="_foreach_add_")
    tensors = [torch.ones(2), torch.ones(3)]
    with amanda.apply(tool):
        for _ in range(2):
            torch._foreach_add_(tensors, 1.0)
    assert [t[0].item() for t in tensors] == [3.0, 3.0]
    assert tool.inputs[0][0][0] is tensors[0]


def test_a_foreach_operators_input_is_edited(before):
    tensors = [torch.ones(2), torch.ones(3)]
    with amanda.apply(before("_foreach_add_", lambda self: [t * 10 for t in self], ["self"])):
        for _ in range(2):
            torch._foreach_add_(tensors, 1.0)
    assert [t[0].item() for t in tensors] == [111.0, 111.0]
    with amanda.apply(before("_foreach_add_", lambda other: [t * 10 for t in other], ["other"])):
        torch._foreach_add_(tensors, [torch.ones(2), torch.ones(3)])
    assert [t[0].item() for t in tensors] == [121.0, 121.0]


def test_members_that_are_one_tensor_stay_one(before):
    def copies(tensors):
        return [t.clone() for t in tensors]

    a, b = torch.zeros(2), torch.zeros(2)
    with amanda.apply(before("_foreach_add_", copies, ["self"])):
        torch._foreach_add_([a, b, a], 1.0)
    assert (a.tolist(), b.tolist()) == ([2.0, 2.0], [1.0, 1.0])


def test_members_that_are_one_tensor_can_have_one_value_only(before, says):
    a = torch.zeros(2)
    text = "its members 0 and 1 are one tensor, which the operator writes to; the values for them differ"

    def routine(tensors):
        return [t + i for i, t in enumerate(tensors)]

    with says(amanda.Error, f"[action] tool: routine before aten::_foreach_add_: input 0 (self): {text}"):
        with amanda.apply(before("_foreach_add_", routine, ["self"])):
            torch._foreach_add_([a, a], 1.0)
    assert a.tolist() == [0.0, 0.0]


def test_members_that_share_memory_are_not_edited_in_silence(before, says):
    def routine(tensors):
        return [t.clone() for t in tensors]

    a = torch.zeros(2)
    text = "its members 0 and 1 share memory that the operator writes to; other values cannot replace them"
    with says(amanda.Error, f"[action] tool: routine before aten::_foreach_add_: input 0 (self): {text}"):
        with amanda.apply(before("_foreach_add_", routine, ["self"])):
            torch._foreach_add_([a, a[1:]], 1.0)


def test_members_handed_back_are_no_edit(before):
    a = torch.zeros(2)
    with amanda.apply(before("_foreach_add_", lambda tensors: list(tensors), ["self"])):
        torch._foreach_add_([a, a[1:]], 1.0)
    assert a.tolist() == [1.0, 2.0]


@pytest.mark.parametrize("foreach", [False, True])
def test_an_optimizer_step_is_unharmed(foreach, recorder):
    def step():
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 3)
        optimizer = torch.optim.AdamW(model.parameters(), foreach=foreach)
        for _ in range(2):
            model(torch.ones(1, 3)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        return list(model.parameters())

    expected = step()
    with amanda.apply(recorder(nested=True)):
        got = step()
    assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))
