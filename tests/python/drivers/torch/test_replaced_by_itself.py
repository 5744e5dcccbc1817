"""An operator that is replaced by its own original: values, gradients, graphs, views and versions are the program's."""

import amanda
import pytest
import torch
from torch import nn
from unharmed import Itself, Look, bits


def graph_of(tensor):
    """The names of all nodes behind the tensor, as a tree."""

    def names(node):
        return node and (node.name(), [names(following) for following, _ in node.next_functions])

    return names(tensor.grad_fn)


def known_of(tensor):
    """What PyTorch knows of a tensor: its bits, graph and version, and what of its base it views."""
    base = tensor._base if tensor._is_view() else None
    view = base is not None and (tensor.storage_offset(), tensor.untyped_storage().nbytes(), bits(base), base._version)
    return bits(tensor), graph_of(tensor), tensor._version, view


def values():
    return torch.arange(1.0, 5.0).reshape(2, 2).requires_grad_()


def assign_to_two_slices():
    a, x = values(), torch.zeros(3, 3)
    x[:2, :2] = a * 2
    return [x, a]


def assign_to_a_part_with_a_graph():
    a, x = values(), values() * 3
    x[1:, :] = a[0] * 2
    x[0, 1] = a[1, 1]
    return [x, a]


def assign_by_indices():
    a, x = values(), torch.zeros(3, 4)
    x[:2, [0, 2]] = a * 2
    x[1:][:, 1:3][torch.tensor([[True, False], [False, True]])] = 7.0
    return [x, a]


def assign_a_number():
    x = values() * 2
    x[0] = 1.0
    x[:, 1:] = 5
    return [x]


def assign_imaginary_parts():
    a, x = values(), torch.zeros(2, 2, dtype=torch.complex64)
    x.imag = a * 2
    x.real[:1, :1] = a[:1, :1]
    return [torch.view_as_real(x), a]


def views_of_one_tensor():
    x = values() * 2
    first, second = x.unbind()
    turned = x.t()[1:]
    turned.mul_(3)
    return [x, turned, x.reshape(4), x[None], x.expand(2, 2, 2), first.detach(), second.detach()]


def lists_of_temporaries():
    a = values()
    return [torch.column_stack([a[0], a[1]]), torch.einsum("ij,kj->ik", a, a), torch.block_diag(a, a), a]


def rows_of_parameters():
    torch.manual_seed(0)
    table = nn.Embedding(4, 2, padding_idx=1)
    with torch.no_grad():
        row = table.weight[2]
        row.fill_(3.0)
        table.weight[:2, :1] = 5.0
        table.weight.data[3].zero_()
    return [table(torch.tensor([0, 1, 2, 3])), table.weight]


def one_step():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.ReLU(inplace=True), nn.Linear(3, 2))
    optimizer = torch.optim.Adam(model.parameters(), 0.1)
    model(values().detach()).square().sum().backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
    return [*model.parameters(), *model.buffers()]


PROGRAMS = [
    assign_to_two_slices,
    assign_to_a_part_with_a_graph,
    assign_by_indices,
    assign_a_number,
    assign_imaginary_parts,
    views_of_one_tensor,
    lists_of_temporaries,
    rows_of_parameters,
    one_step,
]
# Outermost calls; those that have kernels of their own; and single types, with all others as they are.
SOME = ["slice", "select", "fill_", "copy_", "index_put_", "cat", "view", "t", "addmm", "mul_", "detach"]
OPS = {"outermost": {}, "inner": {"inner": True}} | {name: {"ops": name} for name in SOME}


def left_by(program):
    """What the program leaves, with the gradients of its leaves."""
    left = program()
    known = [known_of(tensor) for tensor in left]
    recorded = [tensor for tensor in left if tensor.grad_fn is not None]
    if recorded:
        sum(tensor.abs().square().sum() for tensor in recorded).backward()
    return known, [bits(tensor.grad) for tensor in left if tensor.is_leaf]


@pytest.mark.parametrize("ops", OPS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_nothing_tells_that_it_was_replaced(program, ops):
    expected = left_by(program)
    with amanda.apply(Itself(**OPS[ops])):
        for _ in range(2):
            assert left_by(program) == expected


def row_out_of_date():
    """A view that was made without recording, of a parameter that has changed since: reading its grad_fn is an error."""
    weight = nn.Parameter(torch.ones(3, 2))
    with torch.no_grad():
        row = weight[1]
        weight.add_(1)
    return row


@pytest.mark.parametrize("tool", [Itself, lambda: Itself(inner=True), Look, lambda: Look(hand_back=True)])
@pytest.mark.parametrize("recording", [False, True])
def test_a_view_without_an_edge_passes_through(tool, recording):
    row = row_out_of_date()
    with amanda.apply(tool()), torch.set_grad_enabled(recording):
        assert row.contiguous() is row
        assert torch.dropout(row, 0.5, False) is row
        assert (row.detach() * 2).tolist() == [4.0, 4.0]
    with amanda.apply(tool()), torch.no_grad():
        assert row.mul_(2) is row
    assert row.tolist() == [4.0, 4.0]


def test_a_tools_value_may_be_a_view_without_an_edge(after):
    row = row_out_of_date()
    x = torch.ones(2, requires_grad=True)
    with amanda.apply(after("relu", lambda y: row)):
        y = torch.relu(x)
    y.sum().backward()
    assert (y.tolist(), x.grad.tolist()) == ([2.0, 2.0], [1.0, 1.0])
