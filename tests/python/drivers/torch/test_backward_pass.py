"""Inside a backward pass nothing is caught but what a checkpoint recomputes; afterwards all is as before."""

import threading

import amanda
import pytest
import torch
from amanda import _torch
from torch.utils.checkpoint import checkpoint

nn = torch.nn
KEYS = [torch._C._parse_dispatch_key(name) for name in _torch.dispatch_keys()]


def caught():
    """Is some key of ours on, on this thread?"""
    return any(torch._C._dispatch_tls_is_dispatch_key_included(key) for key in KEYS)


def counting(ops=None):
    ran = []

    def analyse(context):
        context.insert_before_op(lambda: ran.append(context.op.__name__), inputs=[])

    tool = amanda.Tool("counting")
    tool.add_inst_for_op(analyse, ops=ops)
    return tool, ran


def states_in(run):
    """Runs it on a tensor with a gradient hook that records whether operators are caught."""
    states, x = [], torch.ones(3, requires_grad=True)
    y = x * 2
    y.register_hook(lambda gradient: states.append(caught()))
    run(y)
    return states


@pytest.mark.parametrize("ops", [None, "sin"])
@pytest.mark.parametrize("run", [lambda y: y.sum().backward(), lambda y: torch.autograd.grad(y.sum(), y)])
def test_no_key_is_on_in_the_pass_and_it_is_again_after_it(ops, run):
    with amanda.apply(counting(ops)[0]):
        assert caught()
        assert states_in(run) == [False]
        assert caught()
    assert not caught()


@pytest.mark.parametrize("use_reentrant", [False, True])
@pytest.mark.parametrize("ops", [None, "sin"])
def test_what_a_checkpoint_recomputes_is_caught_and_the_nodes_after_it_are_not(use_reentrant, ops):
    states = []

    def block(x):
        states.append(caught())
        return x.sin().exp()

    tool, ran = counting(ops)
    with amanda.apply(tool):
        x = torch.ones(3, requires_grad=True)
        y = checkpoint(block, x * 2, use_reentrant=use_reentrant)
        y.register_hook(lambda gradient: states.append(caught()))
        x.register_hook(lambda gradient: states.append(caught()))
        y.sum().backward()
    assert states == [True, False, True, False]
    assert ran.count("sin") == 2
    assert [name for name in ran if name in ("cos", "mul_", "zeros_like")] == []


def test_a_pass_that_fails_leaves_the_keys_as_they_were():
    def fail(y):
        y.register_hook(lambda gradient: 1 / 0)
        y.sum().backward()

    tool, ran = counting()
    with amanda.apply(tool):
        with pytest.raises(ZeroDivisionError):
            states_in(fail)
        assert caught()
        ran.clear()
        torch.ones(2).sin()
    assert ran[-1] == "sin"


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_a_recomputation_that_fails_does_too(use_reentrant):
    runs = []

    def block(x):
        runs.append(caught())
        if len(runs) == 2:
            raise KeyboardInterrupt
        return x.sin()

    with amanda.apply(counting()[0]):
        y = checkpoint(block, torch.ones(3, requires_grad=True) * 2, use_reentrant=use_reentrant)
        with pytest.raises(KeyboardInterrupt):
            y.sum().backward()
        assert runs == [True, True]
        assert caught()
    assert not caught()


def test_a_scope_that_a_hook_opens_or_leaves():
    inner, ran = counting("cos")

    def nest(y):
        def hook(gradient):
            with amanda.apply(inner):
                gradient.cos()

        y.register_hook(hook)
        y.sum().backward()

    with amanda.apply(counting("sin")[0]):
        states_in(nest)
        assert caught()
    assert not caught()
    assert ran == []  # inside a backward operator, as ever

    scope = amanda.apply(counting()[0])
    scope.__enter__()
    states_in(lambda y: (y.register_hook(lambda gradient: scope.__exit__(None, None, None)), y.sum().backward()))
    assert not caught()


def test_a_thread_without_a_scope_is_left_alone():
    states = []
    with amanda.apply(counting()[0]):
        thread = threading.Thread(target=lambda: states.extend([*states_in(lambda y: y.sum().backward()), caught()]))
        thread.start()
        thread.join()
    assert states == [False, False]


def test_pytorch_has_its_own_back_after_the_last_scope():
    def parts():
        checkpoints = torch.utils.checkpoint
        engine = torch.autograd.variable.Variable._execution_engine
        return engine, checkpoints.CheckpointFunction.backward, checkpoints._run_fn_with_dynamo_disabled

    before = parts()
    with amanda.apply(counting()[0]):
        assert all(mine is not own for mine, own in zip(parts(), before, strict=True))
        with amanda.apply(counting()[0]):
            pass
        assert parts() != before
    assert all(now is own for now, own in zip(parts(), before, strict=True))


def test_callbacks_at_the_end_of_a_pass_belong_to_it():
    engine = torch.autograd.variable.Variable._execution_engine
    states = []

    def queue(y):
        y.register_hook(lambda gradient: engine.queue_callback(lambda: states.append(caught())))
        y.sum().backward()

    with amanda.apply(counting()[0]):
        states_in(queue)
    assert states == [False]
