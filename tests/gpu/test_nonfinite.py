"""NaNSentinel on a device: the operator that it names, and that nothing waits for the device."""

import amanda
import pytest
import torch
from amanda.tools.flops import Flops
from amanda.tools.memory import PeakMemory
from amanda.tools.nonfinite import NaNSentinel, NonfiniteError
from amanda.tools.profile import Profile
from device_programs import network
from unharmed import Look


def from_forward(device):
    y = torch.tensor([1.0, 0.0], device=device) * 2
    z = y / (y - 2)
    return (z - z).sum() + 1


def from_backward(device):
    x = torch.tensor([0.0, 1.0], device=device, requires_grad=True)
    (x.sqrt() * 0).sum().backward()


@pytest.mark.parametrize(("program", "operator"), [(from_forward, "aten::sub"), (from_backward, "aten::sqrt")])
def test_the_operator_is_named(program, operator, device):
    with pytest.raises(NonfiniteError) as raised, amanda.apply(NaNSentinel()):
        program(device)
    assert raised.value.finding.name == operator


@pytest.mark.parametrize("make", [Look, NaNSentinel, Profile, PeakMemory, Flops], ids=lambda make: make.__name__)
def test_tools_that_do_not_wait(make, cuda):
    model, x = network(cuda)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step():
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    step()
    with amanda.apply(make()):
        for _ in range(3):
            torch.cuda.set_sync_debug_mode("error")
            try:
                step()
            finally:
                torch.cuda.set_sync_debug_mode("default")
