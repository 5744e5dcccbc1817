"""Recomputed regions: seen again, with the ids of the first run, and not mistaken for backward operators."""

import amanda
import pytest
import torch
from unharmed import reusable

X = torch.tensor([-1.0, 2.0])
nn = torch.nn


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpointed_region_is_seen_again_when_it_is_recomputed(reentrant, recorder):
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    x = torch.randn(2, 4, requires_grad=True)
    tool = recorder(ops=["linear", "relu"])
    recomputing = []
    asker = amanda.Tool()
    asker.add_inst_for_op(lambda c: recomputing.append(c.is_recompute), ops="linear")
    with amanda.apply(tool, asker), amanda.cache_disabled():
        y = torch.utils.checkpoint.checkpoint(model, x, use_reentrant=reentrant)
        assert tool.ran == ["linear", "relu"]
        y.sum().backward()
    assert tool.ran == ["linear", "relu"] * 2
    assert recomputing == [False, True]


def test_recomputation_of_a_leaf_input_has_the_ids_of_the_first_run(recorder):
    model, x = nn.Sequential(nn.Linear(4, 4), nn.ReLU()), torch.randn(2, 4, requires_grad=True)
    tool = recorder(ops=["linear", "relu"])
    with amanda.apply(tool):
        torch.utils.checkpoint.checkpoint(model, x, use_reentrant=False).sum().backward()
    assert (tool.analysed, tool.ran) == (["linear", "relu"], ["linear", "relu"] * 2)


@pytest.mark.parametrize("reentrant", [True, False])
def test_recomputation_has_the_ids_of_the_first_run(reentrant, recorder):
    model, x = nn.Sequential(nn.Linear(4, 4), nn.ReLU()), torch.randn(2, 4, requires_grad=True)
    tool = recorder(ops=["linear", "relu"])
    with amanda.apply(tool):
        torch.utils.checkpoint.checkpoint(model, x * 1, use_reentrant=reentrant).sum().backward()
    assert (tool.analysed, tool.ran) == (["linear", "relu"], ["linear", "relu"] * 2)


@pytest.mark.parametrize("reentrant", [True, False])
def test_an_edit_applies_in_recomputation_too(reentrant, after):
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 1))

    def train(forward):
        model.zero_grad()
        x = torch.ones(2, 3, requires_grad=True)
        forward(x).sum().backward()
        return [x.grad, *(p.grad.clone() for p in model.parameters())]

    with amanda.apply(after("relu", lambda y: y * 3)):
        expected = train(model)
        got = train(lambda x: torch.utils.checkpoint.checkpoint(model, x, use_reentrant=reentrant))
    assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))


def test_operators_of_the_backward_pass_are_not_forward_operators(recorder):
    x = X.clone().requires_grad_()
    tool = recorder(nested=True)
    with amanda.apply(tool):
        y = torch.sigmoid(x).sum()
        tool.ran.clear()
        torch.autograd.backward(y, torch.ones(()))
    assert "sigmoid_backward" not in tool.ran
    assert "mul" not in tool.ran


# ---- bit-equal, with events where they belong ------------------------------------------------------------------------


def checkpointed(model, x, reentrant, **options):
    return torch.utils.checkpoint.checkpoint(model, x, use_reentrant=reentrant, **options)


def make_block():
    return nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.GELU(), nn.Linear(4, 4))


block, other_block = reusable(make_block()), reusable(make_block())
three_blocks = reusable(nn.ModuleList(make_block() for _ in range(3)))
four_layers = reusable(nn.Sequential(*(nn.Linear(4, 4) for _ in range(4))))


@pytest.mark.parametrize("reentrant", [True, False])
def test_training_with_checkpoints(reentrant, unharmed):
    def program():
        blocks = three_blocks()
        optimizer = torch.optim.AdamW(blocks.parameters(), 0.01)
        for _ in range(2):
            h = torch.randn(2, 4, requires_grad=True)
            for each in blocks:
                h = checkpointed(each, h, reentrant)
            optimizer.zero_grad()
            h.square().sum().backward()
            optimizer.step()
        return *blocks.parameters(), *(parameter.grad for parameter in blocks.parameters())

    tool = unharmed(program, all_end=False)
    assert tool.count["linear"] == tool.count["linear (recompute)"] or tool.count["linear"] == 24
    assert tool.ran.count("linear") + tool.ran.count("linear (recompute)") == 24
    assert tool.count["GeluBackward0"] == 6


@pytest.mark.parametrize("reentrant", [True, False])
def test_nested_checkpoints(reentrant, unharmed):
    def program():
        inner, outer = block(), other_block()
        x = torch.randn(2, 4, requires_grad=True)
        y = checkpointed(lambda h: outer(checkpointed(inner, h, reentrant)), x, reentrant)
        y.sum().backward()
        return x.grad, *(parameter.grad for parameter in [*inner.parameters(), *outer.parameters()])

    assert unharmed(program, all_end=False).count["GeluBackward0"] == 2


def test_checkpoint_under_autocast(unharmed):
    def program():
        model, x = block(), torch.randn(2, 4, requires_grad=True)
        with torch.autocast("cpu", torch.bfloat16):
            y = checkpointed(model, x, False)
        y.float().sum().backward()
        return y, x.grad, *(parameter.grad for parameter in model.parameters())

    unharmed(program, all_end=False)


def test_checkpoint_sequential(unharmed):
    def program():
        model, x = four_layers(), torch.randn(2, 4, requires_grad=True)
        torch.utils.checkpoint.checkpoint_sequential(model, 2, x, use_reentrant=False).sum().backward()
        return x.grad, *(parameter.grad for parameter in model.parameters())

    unharmed(program, all_end=False)


def test_selective_checkpoints(unharmed):
    from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

    def policy(context, op, *args, **kwargs):
        return CheckpointPolicy.MUST_SAVE if op == torch.ops.aten.addmm.default else CheckpointPolicy.PREFER_RECOMPUTE

    def program():
        model, x = block(), torch.randn(2, 4, requires_grad=True)
        y = checkpointed(model, x, False, context_fn=lambda: create_selective_checkpoint_contexts(policy))
        y.sum().backward()
        return y, x.grad, *(parameter.grad for parameter in model.parameters())

    unharmed(program, all_end=False)


def test_early_stop_and_a_gradient_of_a_checkpoint(unharmed):
    def program():
        x = torch.randn(3, requires_grad=True)
        with torch.utils.checkpoint.set_checkpoint_early_stop(False):
            y = checkpointed(lambda v: v.sin().exp(), x, False)
            (first,) = torch.autograd.grad(y.sum(), x, create_graph=True)
            (second,) = torch.autograd.grad(first.sum(), x)
        return y, first, second

    unharmed(program, all_end=False)
