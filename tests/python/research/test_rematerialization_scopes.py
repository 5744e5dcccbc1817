"""Rematerialization next to other tools, on threads and in several scopes."""

import threading

import amanda
import pytest
import torch
from amanda.research.rematerialization import Rematerialization
from amanda.tools.quantization import FakeQuantization
from budget_runs import UNLIMITED, in_least_memory, mlp, total, train
from evicted_programs import leaf

pytestmark = pytest.mark.usefixtures("one_thread")  # the tensors are small


def test_an_operator_that_another_tool_replaces_or_edits_is_computed_as_edited():
    class Edits(amanda.Tool):
        def __init__(self):
            super().__init__()
            self.add_inst_for_op(lambda context: context.replace_op(torch.cos), ops="sin")
            self.add_inst_for_op(lambda context: context.insert_before_op(lambda x: x * 2), ops="tanh")
            self.add_inst_for_op(lambda context: context.insert_after_op(lambda y: y + 1), ops="exp")

    def step(*tools):
        torch.manual_seed(0)
        w = leaf(64)
        with amanda.apply(*tools):
            w.sigmoid().sin().tanh().exp().sigmoid().tanh().sin().cos().exp().sum().backward()
        return w.grad

    expected = step(Edits())
    for order in (slice(None), slice(None, None, -1)):
        tool, found = in_least_memory(lambda tool, order=order: step(*[Edits(), tool][order]))
        assert torch.equal(found, expected)
        assert total(tool, "evicted") > 0


def test_quantization_aware_training_in_a_budget():
    def step(*tools):
        torch.manual_seed(0)
        model, loss_of = mlp()
        with amanda.apply(FakeQuantization(), *tools):
            loss_of(model).backward()
        return [parameter.grad for parameter in model.parameters()]

    measuring = Rematerialization(UNLIMITED)
    expected = step()
    step(measuring)
    tool = Rematerialization(measuring.peak * 85 // 100, costs="equal")
    for value, other in zip(step(tool), expected, strict=True):
        assert torch.equal(value, other)
    assert total(tool, "recomputed") > 0


def test_one_tool_in_two_threads_and_two_scopes():
    expected = train(mlp, 3)
    measuring = Rematerialization(UNLIMITED)
    train(mlp, 3, measuring)
    tool = Rematerialization(measuring.peak * 3 // 4, costs="equal")
    found = []

    def work():
        found.append(train(mlp, 3, tool)[0])

    for _ in range(2):  # one after the other: the random state is the process's
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    work()
    assert found == [expected[0]] * 3
    assert total(tool, "evicted") > 0


def test_threads_share_a_budget_at_the_same_time():
    def step(w):
        w.exp().sin().tanh().cos().sin().tanh().exp().sum().backward()

    leaves = [torch.full((256,), 0.1 * i, requires_grad=True) for i in range(4)]
    expected = []
    for w in leaves:
        other = w.detach().requires_grad_()
        step(other)
        expected.append(other.grad)
    tool = Rematerialization(24 * 1024)
    start = threading.Barrier(4)

    def work(w):
        try:
            with amanda.apply(tool):
                for _ in range(20):
                    w.grad = None
                    start.wait()
                    step(w)
        except BaseException:
            start.abort()  # the others would wait for ever
            raise

    threads = [threading.Thread(target=work, args=(w,)) for w in leaves]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for w, gradient in zip(leaves, expected, strict=True):
        assert torch.equal(w.grad, gradient)


def test_scopes_left_in_another_order_than_entered_leave_the_hooks_of_the_program():
    seen = []
    hooks = torch.autograd.graph.saved_tensors_hooks(lambda x: seen.append("pack") or x, lambda x: x)
    scope = amanda.apply(Rematerialization(UNLIMITED))
    scope.__enter__()
    hooks.__enter__()
    scope.__exit__(None, None, None)
    leaf(4).exp()
    assert seen == ["pack"]
    hooks.__exit__(None, None, None)
    leaf(4).exp()
    assert seen == ["pack"]
