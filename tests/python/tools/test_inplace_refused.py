"""InplaceErrors: writes that PyTorch refuses, and what they are refused for."""

import re

import amanda
import pytest
import torch
from amanda.tools.inplace import InplaceErrors
from inplace_programs import leaf
from torch import nn


class Flat(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view(-1)

    @staticmethod
    def backward(ctx, gradient):
        return gradient.view(2, 3)


def to_a_leaf():
    layer = nn.Linear(2, 2)
    layer.weight.add_(1)


def to_a_row_of_a_leaf():
    layer = nn.Linear(2, 2)
    layer.weight[0].mul_(2)


def to_an_item_of_a_leaf():
    layer = nn.Linear(2, 2)
    layer.weight[0] = 1


def to_a_chunk():
    q, _ = nn.Linear(4, 8)(torch.randn(2, 4)).chunk(2, -1)
    q.mul_(2)


def to_unbound():
    first, _ = (leaf(2, 3) * 1).unbind(0)
    first.add_(1)


def to_a_list_of_views():
    torch._foreach_add_(list((leaf(2, 3) * 1).unbind(0)), 1.0)


def to_a_view_of_no_grad():
    y = leaf(2, 3) * 1
    with torch.no_grad():
        row = y[0]
    row.add_(1)


def to_a_view_of_a_function():
    Flat.apply(leaf(2, 3) * 1).add_(1)


def to_inference():
    with torch.inference_mode():
        x = torch.ones(2)
    x.add_(leaf(2))


REFUSED = [
    (to_a_leaf, "aten::add_", "self", "a leaf", "weight", None),
    (to_a_row_of_a_leaf, "aten::mul_", "self", "a view of a leaf", "weight", "aten::select"),
    (to_an_item_of_a_leaf, "aten::fill_", "self", "a view of a leaf", "weight", "aten::select"),
    (to_a_chunk, "aten::mul_", "self", "one of several views", "", "aten::chunk"),
    (to_unbound, "aten::add_", "self", "one of several views", "", "aten::unbind"),
    (to_a_list_of_views, "aten::_foreach_add_", "self[0]", "one of several views", "", "aten::unbind"),
    (to_a_view_of_no_grad, "aten::add_", "self", "a view made in no_grad", "", None),
    (to_a_view_of_a_function, "aten::add_", "self", "a view from an autograd.Function", "", None),
    (to_inference, "aten::add_", "self", "a tensor of inference mode", "", None),
]


@pytest.mark.parametrize(
    ("program", "op", "operand", "kind", "parameter", "maker"),
    REFUSED,
    ids=[program.__name__ for program, *_ in REFUSED],
)
def test_a_write_that_is_refused(program, op, operand, kind, parameter, maker):
    with pytest.raises(RuntimeError) as plain:
        program()
    tool = InplaceErrors()
    with pytest.raises(RuntimeError) as caught, amanda.apply(tool):
        program()
    assert str(caught.value) == str(plain.value)
    (found,) = tool.findings()
    assert (found.place.name, found.operand, found.kind, found.parameter) == (op, operand, kind, parameter)
    assert (found.maker and found.maker.name) == maker
    first = program.__code__.co_firstlineno
    assert first < int(found.place.source.rpartition(":")[2]) < first + 6
    assert caught.value.__notes__ == [f"[inplace] {found}"]
    assert tool.answer() == str(found)


def test_the_remedy_of_a_refused_write():
    with pytest.raises(RuntimeError), amanda.apply(tool := InplaceErrors()):
        to_a_chunk()
    (found,) = tool.findings()
    assert re.fullmatch(
        r"use mul, which returns a new tensor, in place of mul_ in \S+: x = x \* y, not x \*= y; or take each view by "
        r"itself, x\[i\] or x.narrow\(...\)",
        found.remedy,
    )
