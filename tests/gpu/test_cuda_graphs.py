"""CUDA graphs that are captured, or replayed, in a scope."""

import contextlib

import amanda
import pytest
import torch
from amanda.tools.nonfinite import NaNSentinel
from device_programs import gradients, network
from unharmed import Look, bits


class Largest(amanda.Tool):
    """Keeps the largest magnitude of each result of a linear layer on the device: it waits for nothing."""

    def __init__(self):
        super().__init__()
        self.values = []
        self.add_inst_for_op(lambda context: context.insert_after_op(self.note), ops="linear")

    def note(self, output):
        self.values.append(output.abs().amax())


def scope(tool):
    return contextlib.nullcontext() if tool is None else amanda.apply(tool)


def replayed(device, train, *, capture=None, replay=None):
    """The results of a graph on three inputs."""
    model, x = network(device)
    static = x.clone()

    def step():
        model.zero_grad(set_to_none=True)
        out = model(static)
        if train:
            out.square().mean().backward()
        return out

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    graph = torch.cuda.CUDAGraph()
    with scope(capture):
        with torch.cuda.stream(side):
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(side)
        with torch.cuda.graph(graph):
            out = step()
    found = []
    with scope(replay):
        for factor in (1, 2, 3):
            static.copy_(x * factor)
            graph.replay()
            torch.cuda.synchronize()
            found.append(bits([out, gradients(model)]))
    return found


TOOLS = {
    "look": Look,
    "hand back": lambda: Look(hand_back=True),
    "operators of its own": Largest,
    "NaNSentinel": NaNSentinel,
}


@pytest.mark.parametrize("train", [False, True], ids=["forward", "train"])
@pytest.mark.parametrize("tool", TOOLS)
def test_a_graph_that_is_captured_in_a_scope(tool, train, cuda):
    expected = replayed(cuda, train)
    assert replayed(cuda, train, capture=TOOLS[tool]()) == expected


@pytest.mark.parametrize("train", [False, True], ids=["forward", "train"])
def test_a_graph_that_is_replayed_in_a_scope(train, cuda):
    expected, tool = replayed(cuda, train), Look(["linear", "gelu"])
    assert replayed(cuda, train, replay=tool) == expected
    assert not tool.count  # a replay runs kernels, and no operator


def test_the_values_that_a_captured_routine_keeps_are_those_of_the_replay(cuda):
    tool = Largest()
    replayed(cuda, False, capture=tool)
    model, x = network(cuda)
    hidden, largest = x * 3, []  # the input of the last replay
    for layer in model:
        hidden = layer(hidden)
        if isinstance(layer, torch.nn.Linear):
            largest.append(hidden.abs().amax())
    assert torch.equal(torch.stack(tool.values[-3:]), torch.stack(largest))


def test_make_graphed_callables(cuda):
    def run(tool):
        model, x = network(cuda)
        with scope(tool):
            graphed = torch.cuda.make_graphed_callables(model, (x.clone(),))
            out = graphed(x)
            out.sum().backward()
        return bits([out, gradients(model)])

    assert run(Look()) == run(None)
