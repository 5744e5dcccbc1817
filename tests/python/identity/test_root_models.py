"""amanda.root around models and in them, with checkpoints, optimizers and compiled code."""

import contextlib

import amanda
import torch
from amanda.driver.identity import roots
from callers import Ids, Model, X, ids, ids_by_caller, loss
from torch import nn
from torch.utils.checkpoint import checkpoint


def activate(x):
    with contextlib.nullcontext():
        return x.relu()


def test_inside_a_module_the_path_begins_at_the_module():
    model = Model(activate)
    plain = ids(lambda: model(X))
    model.activation = amanda.root(activate)
    assert ids(lambda: model(X)) == plain


def test_a_model_has_the_same_ids_in_a_root_and_outside():
    model = Model(activate)

    def in_a_block():
        with amanda.root("step"):
            model(X)

    assert ids(in_a_block) == ids(lambda: model(X)) == ids(amanda.root(lambda: model(X)))


def test_a_module_without_state_is_in_the_root():
    @amanda.root
    def step():
        return nn.MSELoss()(X, X)

    first, second, third = ids_by_caller(step)
    assert first == second == third


def test_a_checkpoint_around_a_root_counts():
    start = torch.ones(2, requires_grad=True)

    @amanda.root
    def region(x):
        return x.relu()

    tool = Ids(ops="relu")
    with amanda.apply(tool):
        checkpoint(region, start, use_reentrant=False).sum().backward()
    assert len(tool.runs) == 2
    assert tool.runs[0] == tool.runs[1]


def test_an_optimizers_step_has_the_same_ids_from_every_loop():
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    @amanda.root
    def step():
        optimizer.zero_grad()
        model(X).sum().backward()
        optimizer.step()

    def warm_up():
        for _ in range(2):
            step()

    def train():
        def epoch():
            step()

        epoch()

    first = ids(warm_up)
    assert set(first) == set(ids(train))
    assert len(first) > len(set(first)) >= 3


def test_compiled_code_may_hold_a_block():
    def program(x):
        with amanda.root("step"):
            return x.relu()

    compiled = torch.compile(program, backend="eager")
    for policy in ("eager", "opaque"):
        with amanda.apply(Ids(), compiled=policy):
            assert torch.equal(compiled(X), X)
    assert torch.equal(compiled(X), X)
    assert torch.equal(torch.compile(loss, backend="eager", fullgraph=True)(X, X), loss(X, X))
    assert not roots._blocks
