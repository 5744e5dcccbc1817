"""Rematerialization's rows, and the memory that it counts."""

import gc

import amanda
import pytest
import torch
from amanda.research.rematerialization import Rematerialization
from budget_runs import UNLIMITED, total
from evicted_programs import leaf
from torch import nn

pytestmark = pytest.mark.usefixtures("one_thread")  # the tensors are small

OTHERS = "parameter, input, or made without gradients"


def test_rows_say_what_was_kept_and_why():
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 8), nn.ReLU(inplace=True), nn.Linear(8, 8))
    tool = Rematerialization(UNLIMITED)
    with amanda.apply(tool):
        model(torch.ones(4, 8)).sum().backward()
    kept = {row.kept_because: (row.kept, row.kept_bytes) for row in tool.rows("reason")}
    size = 4 * 8 * 4
    assert kept["random"] == (1, size)  # the mask
    assert kept["changed in place"] == (1, size)  # what relu_ made
    # The input of the first linear layer, and the weights of the others: views of parameters.
    assert kept[OTHERS] == (3, size + 2 * 8 * 8 * 4)
    assert set(kept) == {"random", "changed in place", OTHERS}


def test_rows_say_what_was_evicted_and_recomputed():
    w = leaf(256)
    tool = Rematerialization(6 * 1024 + 64, costs="equal")
    with amanda.apply(tool):
        w.sin().cos().tanh().exp().sin().cos().sum().backward()
    assert total(tool, "evicted") > 0
    for row in tool.rows():
        assert row.evicted_bytes == 1024 * row.evicted
        assert row.op in ("", "aten::sin", "aten::cos", "aten::tanh", "aten::exp")
        assert (row.recompute_ns > 0) == (row.recomputed > 0)
    assert "(can be computed again)" in str(tool.table("reason"))
    tool.reset()
    assert tool.rows() == []
    assert tool.peak < 6 * 1024


def test_memory_counts_until_it_is_freed_and_nothing_is_left_behind():
    tool = Rematerialization(UNLIMITED)
    before = torch.ones(1000, requires_grad=True)
    with amanda.apply(tool):
        y = before.exp().sin()
        assert tool.peak == 8000  # exp and sin
        loss = y.tanh().sum()
    assert tool._rematerializer.live == 12004
    del y, loss
    gc.collect()
    assert tool._rematerializer.live == 0
    after = torch.ones(1000)
    assert tool._rematerializer.live == 0
    del after


def test_the_graph_of_one_step_is_not_kept_for_the_next():
    cell, tool = nn.GRUCell(8, 8), Rematerialization(UNLIMITED)
    state = torch.zeros(4, 8)
    live = []
    with amanda.apply(tool):
        for _ in range(6):
            for _ in range(3):
                state = cell(torch.ones(4, 8), state)
            state.sum().backward()
            state = state.detach()
            live.append(tool._rematerializer.live)
    assert len(set(live[1:])) == 1
