"""Exceptions of the program that pass through a tool's routines are no failures of the tool."""

import amanda
import pytest
import torch
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

OPS = ["sin", "exp", "tanh", "mul", "relu", "matmul"]


def block(x, w):
    y = (x @ w).sin()
    return torch.relu(y.exp() * y).tanh() + y


def run(reentrant, early_stop):
    torch.manual_seed(0)
    x, w = torch.randn(3, 3, requires_grad=True), torch.randn(3, 3, requires_grad=True)
    with set_checkpoint_early_stop(early_stop):
        y = checkpoint(block, x, w, use_reentrant=reentrant)
        y = checkpoint(block, y, w, use_reentrant=reentrant)
    y.sum().backward()
    return x.grad, w.grad


def tool_of(analyse, **options):
    tool = amanda.Tool("tool")
    tool.failures = []
    tool.on_disable = tool.failures.append
    tool.add_inst_for_op(analyse, **{"ops": OPS} | options)
    return tool


def look(context):
    context.insert_before_op(lambda *inputs: None)
    context.insert_after_op(lambda *outputs: None)


def edit(context):
    context.insert_before_op(lambda value: value * 1, inputs=[0], differentiable=True)
    context.insert_after_op(lambda value: value * 1, outputs=[0], differentiable=True)


def replace_by_itself(context):
    context.replace_op(lambda *inputs, op: op(*inputs), op=context.op)


def replace_by_functions(context):
    context.replace_op(getattr(torch, context.op.__name__))


def look_backward(context):
    context.insert_before_backward_op(lambda *gradients: None)
    context.insert_after_backward_op(lambda *gradients: None)


def edit_backward(context):
    context.insert_after_backward_op(lambda *gradients: tuple(g if g is None else g.clone() for g in gradients))


FORWARD = [look, edit, replace_by_itself, replace_by_functions]
BACKWARD = [look_backward, edit_backward]


@pytest.mark.parametrize("early_stop", [True, False])
@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("analyse", FORWARD + BACKWARD)
def test_checkpoints_under_tools_that_are_disabled_where_they_fail(analyse, reentrant, early_stop):
    expected = run(reentrant, early_stop)
    tool = tool_of(analyse, backward=analyse in BACKWARD)
    with amanda.apply(tool, on_error="disable"):
        gradients = run(reentrant, early_stop)
    assert tool.failures == []
    assert all(map(torch.equal, gradients, expected))


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_failure_in_a_checkpoint_disables_as_ever(reentrant):
    def fail(value):
        raise ValueError("wrong")

    expected = run(reentrant, early_stop=True)
    tool = tool_of(lambda context: context.replace_op(fail), ops="tanh")
    with amanda.apply(tool, on_error="disable"):
        gradients = run(reentrant, early_stop=True)
    assert list(map(str, tool.failures)) == ["wrong"]
    assert all(map(torch.equal, gradients, expected))


class Stop(Exception):
    """What a program ends a pass by."""


class Packs:
    def __call__(self, tensor):
        raise Stop


def stopping(tensor):
    raise Stop


@pytest.mark.parametrize("pack", [stopping, Packs(), lambda tensor: Packs()(tensor)])
@pytest.mark.parametrize("analyse", [edit, replace_by_itself, replace_by_functions])
def test_what_the_program_s_saved_tensor_hooks_raise_is_the_program_s(pack, analyse):
    tool = tool_of(analyse)
    x = torch.ones(2, requires_grad=True)
    with amanda.apply(tool, on_error="disable"):
        with pytest.raises(Stop), torch.autograd.graph.saved_tensors_hooks(pack, lambda packed: packed):
            x.exp()
        assert torch.equal(x.exp(), x.exp())  # the tool continues
    assert tool.failures == []


def test_a_routine_s_own_hooks_are_the_tool_s():
    def replacement(value):
        with torch.autograd.graph.saved_tensors_hooks(stopping, stopping):
            return value.exp()

    tool = tool_of(lambda context: context.replace_op(replacement), ops="sin")
    x = torch.ones(2, requires_grad=True)
    with amanda.apply(tool, on_error="disable"):
        assert torch.equal(x.sin(), x.detach().sin())
    assert [type(error) for error in tool.failures] == [Stop]


def test_a_failure_is_told_with_its_traceback():
    def fail(value):
        raise ValueError("wrong")

    tool = tool_of(lambda context: context.insert_before_op(fail))
    with amanda.apply(tool, on_error="disable"):
        torch.sin(torch.ones(2))
    assert tool.failures[0].__traceback__.tb_frame.f_code is fail.__code__
