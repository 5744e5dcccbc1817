"""ErrorInjection: the same faults by hand, on values, gradients and whole trainings.

Equal means torch.equal, on every tensor.
"""

import contextlib

import amanda
import pytest
import torch
from amanda.research.error_injection import BitFlip, ErrorInjection, StuckAt
from by_hand import StraightThrough
from equal_tensors import same
from faulty_network import flipped, network
from tool_regimes import REGIMES, in_regime
from torch.utils.checkpoint import checkpoint

# ---- oracles ---------------------------------------------------------------------------------------------------------


def flip(tensor, index, bit):
    """The same in a program, as hardware does it: what is computed from the value is wrong, the gradient passes."""
    return StraightThrough.apply(tensor, lambda x: flipped(x, index, bit))


def train(model, steps, call=None):
    """Losses and outputs of some steps, then parameters and gradients."""
    generator = torch.Generator().manual_seed(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    found = []
    for _ in range(steps):
        optimizer.zero_grad()
        y = (model if call is None else call)(torch.randn(3, 2, 6, 6, generator=generator))
        loss = y.float().square().mean()
        loss.backward()
        optimizer.step()
        found += [y.detach(), loss.detach()]
    return found + [p for parameter in model.parameters() for p in (parameter, parameter.grad)]


WHERE = {
    "conv output": ("conv2d", {"at": "output"}, (2, 3, 2, 1)),
    "conv input": ("conv2d", {"at": "input"}, (0, 1, 5, 5)),
    "conv weight": ("conv2d", {"at": "weight"}, (3, 0, 2, 1)),
    "fc output": ("linear", {"at": "output"}, (1, 4)),
    "fc input": ("linear", {"at": "input", "position": "input"}, (2, 63)),
    "fc weight": ("linear", {"at": "input", "position": 1}, (0, 17)),
}
each_place = pytest.mark.parametrize("name", WHERE)

# ---- values and gradients --------------------------------------------------------------------------------------------


@each_place
def test_twenty_steps_of_training_are_those_of_the_same_faults_by_hand(name):
    ops, options, index = WHERE[name]
    by_hand = network(lambda at, value: flip(value, index, 22) if at == name else value)
    tool, model = ErrorInjection(BitFlip(22), ops=ops, index=index, **options), network()
    with amanda.apply(tool):
        found = train(model, 20)
    same(found, train(by_hand, 20))
    assert not torch.equal(found[0], train(network(), 1)[0])
    assert [(row.faults, row.executions) for row in tool.rows("id")] == [(20, 20)]


@pytest.mark.parametrize("regime", REGIMES)
@each_place
def test_in_every_regime_faults_are_those_by_hand(regime, name):
    ops, options, index = WHERE[name]

    def by_hand(at, value):
        return flip(value, index, 5 if value.dtype == torch.bfloat16 else 22) if at == name else value

    model, reference = network(), network(by_hand)
    # Autocast casts inside an operator: its weight and its first input are what the program passes.
    casts = regime == "autocast" and name in ("conv output", "fc output", "fc input")
    tool = ErrorInjection(BitFlip(5 if casts else 22), ops=ops, index=index, **options)
    with contextlib.nullcontext(reference) if regime == "compiled code" else in_regime(regime, reference) as call:
        expected = train(reference, 3, call)
    with in_regime(regime, model) as call, amanda.apply(tool):
        found = train(model, 3, call)
    same(found, expected)
    recomputed = regime == "checkpointing" and name != "fc output"  # nobody needs that one again
    assert tool.faults == (6 if recomputed else 3)


def test_a_recomputed_region_is_executed_again():
    tool, model = ErrorInjection(BitFlip(0), ops="conv2d"), network()
    with amanda.apply(tool):
        checkpoint(model, torch.randn(3, 2, 6, 6), use_reentrant=False).sum().backward()
    assert [row.execution for row in tool.rows()] == [0, 1]


GRADIENTS = {
    "output": ({"at": "grad_output", "backward_op": "ConvolutionBackward0"}, (2, 3, 0, 1)),
    "input": ({"at": "grad_input", "backward_op": "Convolution*", "position": 0}, (0, 1, 5, 5)),
    "weight": ({"at": "grad_input", "backward_op": "ConvolutionBackward0", "position": 1}, (3, 1, 2, 1)),
    "bias": ({"at": "grad_input", "backward_op": "ConvolutionBackward0", "position": 2}, (3,)),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_faults_in_gradients_are_those_of_hooks(name):
    options, index = GRADIENTS[name]

    def gradients(conv, hooked):
        torch.manual_seed(2)
        found = []
        for _ in range(3):
            x = torch.randn(3, 2, 6, 6, requires_grad=True)
            inner = x * 2
            y = conv(inner)
            values = {"output": y, "input": inner, "weight": conv.weight, "bias": conv.bias}
            if hooked:
                hook = values[name].register_hook(lambda gradient: flipped(gradient, index, 30))
            conv.zero_grad()
            y.square().sum().backward()
            if hooked:
                hook.remove()
            found += [y.detach(), x.grad, conv.weight.grad, conv.bias.grad]
        return found

    conv = torch.nn.Conv2d(2, 4, 3)
    tool = ErrorInjection(BitFlip(30), ops="conv2d", index=index, **options)
    with amanda.apply(tool):
        found = gradients(conv, hooked=False)
    same(found, gradients(conv, hooked=True))
    assert [(row.backward_op, row.execution) for row in tool.rows()] == [
        ("ConvolutionBackward0", execution) for execution in range(3)
    ]


def test_a_gradient_that_is_accumulated_can_be_hit():
    layer, x = torch.nn.Linear(3, 2, bias=False), torch.ones(1, 3)
    tool = ErrorInjection(StuckAt(7.0), ops="linear", index=(1, 2), at="grad_output", backward_op="AccumulateGrad")
    with amanda.apply(tool):
        layer(x).sum().backward()
    assert layer.weight.grad.tolist() == [[1, 1, 1], [1, 1, 7]]


def test_only_some_executions_are_hit_forward_and_backward():
    x = torch.zeros(4, requires_grad=True)
    forward = ErrorInjection(StuckAt(1.0), ops="neg", index=(0,), execution=2)
    backward = ErrorInjection(
        StuckAt(5.0), ops="neg", index=(1,), execution=range(1, 3), at="grad_output", backward_op="NegBackward0"
    )
    with amanda.apply(forward, backward):
        results = [torch.neg(x) for _ in range(4)]
        gradients = [torch.autograd.grad(y.sum(), x)[0] for y in results]
    assert [y[0].item() for y in results] == [0, 0, 1, 0]
    assert [gradient[1].item() for gradient in gradients] == [-1, -5, -5, -1]
    assert [row.execution for row in forward.rows() + backward.rows()] == [2, 1, 2]
    assert [row.executions for row in forward.rows("id") + backward.rows("id")] == [4, 4]
