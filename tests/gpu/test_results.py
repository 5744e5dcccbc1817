"""Tools that look, and tools that hand back what they got, change no bit of what a device computes."""

import contextlib
from collections import Counter

import amanda
import pytest
import torch
import zoo
from device_programs import OF_CUDA, PROGRAMS, gradients
from unharmed import TOOLS, Look, bits, run, thread_state

MODELS = ["resnet", "bert", "gpt2", "llama", "vit"]
KINDS = ["look inside", "hand back"]


def check(make, program, device):
    expected = run(lambda: program(device))
    if run(lambda: program(device)) != expected:
        pytest.skip("the program itself does not give the same each time")
    tool, state = make(), thread_state()
    with amanda.apply(tool):
        for _ in range(2):
            assert run(lambda: program(device)) == expected
    assert tool.count
    assert thread_state() == state
    assert run(lambda: program(device)) == expected


@pytest.mark.parametrize("tool", KINDS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name, tool, device):
    check(TOOLS[tool], PROGRAMS[name], device)


@pytest.mark.parametrize("tool", KINDS)
@pytest.mark.parametrize("name", OF_CUDA)
def test_programs_of_cuda(name, tool, cuda):
    check(TOOLS[tool], OF_CUDA[name], cuda)


def loss_of(output):
    return output.loss if output.get("loss") is not None else output[0].float().square().mean()


def trained(name, device, autocast, tool=None):
    """All that three train steps leave behind."""
    torch.manual_seed(3)
    model, inputs = getattr(zoo, name)()
    model.to(device).train()
    inputs = {key: value.to(device) for key, value in inputs.items()}
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    losses = []
    with amanda.apply(tool) if tool else contextlib.nullcontext():
        for _ in range(3):
            optimizer.zero_grad()
            with torch.autocast(device.type, torch.bfloat16, enabled=autocast):
                loss = loss_of(model(**inputs))
            loss.backward()
            optimizer.step()
            losses.append(loss)
    return bits(
        [losses, list(model.parameters()), gradients(model), list(model.buffers()), optimizer.state_dict()["state"]]
    )


@pytest.mark.parametrize("autocast", [False, True], ids=["float32", "autocast"])
@pytest.mark.parametrize("name", MODELS)
def test_train_steps(name, autocast, device):
    expected = trained(name, device, autocast)
    if trained(name, device, autocast) != expected:
        pytest.skip("the program itself does not give the same each time")
    for tool in (Look(nested=True), Look(hand_back=True)):
        assert trained(name, device, autocast, tool) == expected
        assert tool.count["AccumulateGrad"]


@pytest.mark.parametrize("name", MODELS)
def test_operators_are_those_of_the_cpu(name, device):
    """All but a few: a fused kernel is another operator."""

    def seen_on(place):
        seen = []

        class Seen(amanda.Tool):
            def __init__(self):
                super().__init__()
                self.add_inst_for_op(lambda context: seen.append((context.op.__name__, context.module_path)))

        trained(name, place, False, Seen())
        return Counter(seen)

    here, there = seen_on(torch.device("cpu")), seen_on(device)
    assert (here & there).total() >= 0.9 * here.total()


@pytest.mark.parametrize("name", MODELS)
def test_nothing_is_lost(name, device):
    model, inputs = getattr(zoo, name)()
    model.to(device)
    inputs = {key: value.to(device) for key, value in inputs.items()}
    with amanda.apply(Look(nested=True), coverage=True) as scope:
        for _ in range(2):
            loss_of(model(**inputs)).backward()
    skipped = {reason for row in scope.coverage().rows for reason in row.skipped}
    assert not skipped & {"lost", "thread"}
