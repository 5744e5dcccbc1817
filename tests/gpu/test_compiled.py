"""Compiled functions on a device: kernels of inductor, and the graphs of "reduce-overhead"."""

import contextlib
import warnings
from collections import Counter

import amanda
import pytest
import torch
from device_programs import gradients, network
from unharmed import bits


class Linears(amanda.Tool):
    """How often each linear layer ran, forward and backward."""

    def __init__(self):
        super().__init__()
        self.forward, self.backward = Counter(), Counter()
        self.add_inst_for_op(self.analyze, ops="linear")
        self.add_inst_for_op(self.analyze, ops="linear", backward=True)

    def analyze(self, context):
        if context.is_backward():
            context.insert_before_backward_op(self.note, counts=self.backward, path=context.module_path)
        else:
            context.insert_after_op(self.note, counts=self.forward, path=context.module_path)

    def note(self, *operands, counts, path):
        counts[path] += 1


def run(device, backend, scope):
    torch._dynamo.reset()
    backend, mode = ("inductor", backend) if backend == "reduce-overhead" else (backend, None)
    model, x = network(device)
    compiled, losses = torch.compile(model, backend=backend, mode=mode), []
    with scope, warnings.catch_warnings():
        warnings.filterwarnings("error", message=r".*\[compile\]")
        for _ in range(4):
            model.zero_grad()
            loss = compiled(x).square().mean()
            loss.backward()
            losses.append(loss.clone())
    return [losses, gradients(model)]


@pytest.mark.parametrize("backend", ["aot_eager", "inductor", "reduce-overhead"])
def test_a_look_inside_compiled_code(backend, device):
    expected, tool = run(device, backend, contextlib.nullcontext()), Linears()
    found = run(device, backend, amanda.apply(tool, compiled="graph"))
    assert tool.forward == {"0": 4, "2": 4, "4": 4}
    assert tool.backward.keys() == tool.forward.keys()
    if backend == "aot_eager":
        assert bits(found) == bits(expected)
    else:  # a value that is shown is rounded
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor", "reduce-overhead"])
def test_opaque(backend, device):
    expected = run(device, backend, contextlib.nullcontext())
    assert bits(run(device, backend, amanda.apply(Linears(), compiled="opaque"))) == bits(expected)


def test_a_kernel_of_triton(cuda):
    triton = pytest.importorskip("triton", reason="triton makes the kernel")
    from triton_kernel import twice

    def program():
        x = torch.arange(1000.0, device=cuda)
        y = torch.empty_like(x)
        twice[(1,)](x, y, 1000, BLOCK=triton.next_power_of_2(1000))
        return bits([x, y])

    tool = Linears()
    expected = program()
    with amanda.apply(tool):
        assert program() == expected
