"""Backward operators of a GPU run on a thread of the engine, and operators on the stream of the program."""

import threading
from collections import Counter

import amanda
import pytest
import torch
from device_programs import gradients, network
from unharmed import Look, bits


class OnBackward(amanda.Tool):
    """Runs a routine after each backward operator of linear layers that has a gradient for a weight."""

    def __init__(self, routine):
        super().__init__()
        self.threads = Counter()
        self.routine = routine
        self.add_inst_for_op(self.analyze, ops="linear", backward=True)

    def analyze(self, context):
        if context.backward_op.__name__ == "AddmmBackward0":
            context.insert_after_backward_op(self.run)

    def run(self, *operands):
        self.threads[threading.get_ident()] += 1
        return self.routine(operands)


def step(device, *tools):
    model, x = network(device)
    with amanda.apply(*tools):
        model(x).square().mean().backward()
    return gradients(model)


def test_backward_routines_run_on_the_threads_of_the_engine(device):
    tool = OnBackward(lambda operands: None)
    step(device, tool)
    assert tool.threads.total() == 3
    assert (threading.get_ident() in tool.threads) == (device.type == "cpu")


def test_an_edit_on_a_thread_of_the_engine(device):
    expected = step(device, Look())
    halved = step(device, OnBackward(lambda operands: [None if one is None else one / 2 for one in operands]))
    # Of the last layer by 2, of the first by 8: what a layer passes on is halved, too.
    for found, gradient, factor in zip(halved, expected, [8, 8, 4, 4, 2, 2], strict=True):
        torch.testing.assert_close(found * factor, gradient)


def test_an_error_on_a_thread_of_the_engine(device):
    def fail(operands):
        raise ValueError("meant")

    with pytest.raises(ValueError, match="meant"):
        step(device, OnBackward(fail))
    assert bits(step(device, Look())) == bits(step(device, Look()))


def test_backward_passes_of_several_threads(device):
    found = {}

    def train(i):
        tool = Look()
        found[i] = bits(step(device, tool)), tool.count

    threads = [threading.Thread(target=train, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert all(one == found[0] for one in found.values())


class Streams(amanda.Tool):
    """The streams on which the routines' own operators run, by module; backward ones with their node."""

    def __init__(self):
        super().__init__()
        self.forward, self.backward = Counter(), Counter()
        self.add_inst_for_op(self.analyze, ops="linear")
        self.add_inst_for_op(self.analyze, ops="linear", backward=True)

    def analyze(self, context):
        if not context.is_backward():
            context.insert_after_op(self.note, counts=self.forward, key=context.module_path)
        elif context.backward_op.__name__ != "AccumulateGrad":
            context.insert_after_backward_op(self.note, counts=self.backward, key=context.module_path)

    def note(self, *operands, counts, key):
        counts[key, torch.cuda.current_stream().cuda_stream] += 1


class Branches(torch.nn.Module):
    def __init__(self, side):
        super().__init__()
        self.one, self.two, self.side = torch.nn.Linear(256, 256), torch.nn.Linear(256, 256), side

    def forward(self, x):
        self.side.wait_stream(torch.cuda.current_stream())
        first = self.one(x)
        for _ in range(20):
            first = first @ self.one.weight
        with torch.cuda.stream(self.side):
            second = self.two(x)
            for _ in range(20):
                second = second @ self.two.weight
        torch.cuda.current_stream().wait_stream(self.side)
        return first.tanh() + second.tanh()


def test_routines_run_on_the_stream_of_their_operator(cuda):
    side = torch.cuda.Stream()

    def run(*tools):
        torch.manual_seed(3)
        model, x = Branches(side).to(cuda), torch.randn(512, 256, device=cuda)
        with amanda.apply(*tools):
            for _ in range(5):
                out = model(x)
                out.square().sum().backward()
        torch.cuda.synchronize()
        return bits([out, gradients(model)])

    tool = Streams()
    with amanda.disabled():
        expected = run(Look())
    assert run(Look()) == run(Look(hand_back=True)) == run(tool) == expected
    main = torch.cuda.current_stream().cuda_stream
    assert tool.forward == {("one", main): 5, ("two", side.cuda_stream): 5}
    assert tool.backward.keys() == {("one", main), ("two", side.cuda_stream)}
