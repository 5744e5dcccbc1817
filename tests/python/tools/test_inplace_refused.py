"""InplaceErrors: writes that PyTorch refuses, and what they are refused for."""

import inspect
import re

import amanda
import pytest
import torch
from amanda.tools.inplace import InplaceErrors
from amanda.tools.inplace.write_recorder import WriteRecorder
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


# ---- graphs that are gone through twice -----------------------------------------------------------------------------


def a_state_carried_over(cell, detached):
    state = torch.zeros(2, 4)
    for _ in range(3):
        state = cell(torch.randn(2, 4), state)
        state.sum().backward()
        state = state.detach() if detached else state


def a_state_of_a_whole_layer(_, detached):
    layer, state = nn.GRU(4, 4), torch.zeros(1, 2, 4)
    for _ in range(3):
        out, state = layer(torch.randn(3, 2, 4), state)
        out.sum().backward()  # what makes `state` is outside this graph
        state = state.detach() if detached else state


def losses_of_one_encoder(_, detached):
    hidden = nn.Linear(4, 4)(torch.randn(2, 4)).relu()
    first, second = hidden.square().sum(), (hidden.detach() if detached else hidden).exp().sum()
    first.backward()
    if second.requires_grad:
        second.backward()


def a_loss_twice(_, retained):
    loss = nn.Linear(4, 4)(torch.randn(2, 4)).square().sum()
    loss.backward(retain_graph=retained)
    loss.backward()


def a_weight_twice(_, detached):
    y = torch.nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4)).weight
    y.square().sum().backward()
    y = y.detach().requires_grad_() if detached else y
    y.square().sum().backward()


TWICE = [
    (a_state_carried_over, "aten::gru_cell", "aten::gru_cell", True),
    (a_state_of_a_whole_layer, "aten::gru", "aten::gru", True),
    (losses_of_one_encoder, "aten::exp", "aten::relu", False),
    (a_loss_twice, "", "aten::sum", False),
    (a_weight_twice, "aten::square", "aten::div", True),
]
AGAIN = "Trying to backward through the graph a second time"


@pytest.mark.parametrize(
    ("program", "user", "used", "is_carried"), TWICE, ids=[program.__name__ for program, *_ in TWICE]
)
def test_what_connects_a_graph_with_that_of_an_earlier_pass(program, user, used, is_carried):
    cell = nn.GRUCell(4, 4)
    with pytest.raises(RuntimeError, match=AGAIN):
        program(cell, False)  # as it is
    tool = InplaceErrors()
    with pytest.raises(RuntimeError, match=AGAIN) as caught, amanda.apply(tool):
        program(cell, False)
    (found,) = tool.findings()
    assert (found.user.partition(" ")[0], found.used.partition(" ")[0], found.is_carried_over) == (
        user,
        used,
        is_carried,
    )
    lines, first = inspect.getsourcelines(program)
    number = int(found.backward.rpartition(":")[2])
    assert "backward(" in lines[number - first]
    assert caught.value.__notes__ == [f"[inplace] {found}"]
    assert tool.answer() == str(found)


@pytest.mark.parametrize("program", [program for program, *_ in TWICE])
def test_a_graph_that_is_cut_or_retained_has_no_finding(program):
    tool = InplaceErrors()
    with amanda.apply(tool):
        program(nn.GRUCell(4, 4), True)
    assert tool.findings() == []


def test_commands_that_record_writes_name_the_one_that_finds_it():
    with pytest.raises(RuntimeError, match=AGAIN) as caught, amanda.apply(WriteRecorder()):
        a_loss_twice(None, False)
    (note,) = caught.value.__notes__
    assert "amanda inplace" in note
