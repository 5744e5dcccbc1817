"""PeakMemory beside the allocator's own figures, and the memory that a look costs."""

import amanda
import pytest
import torch
import zoo
from amanda.tools.memory import PeakMemory
from unharmed import Look


def made(device, name="gpt2"):
    """A model, and its train step."""
    torch.manual_seed(0)
    model, inputs = getattr(zoo, name)()
    model.to(device)
    inputs = {key: value.to(device) for key, value in inputs.items()}
    optimizer = torch.optim.Adam(model.parameters())

    def step():
        optimizer.zero_grad()
        model(**inputs)[0].float().square().mean().backward()
        optimizer.step()

    return model, step


def bytes_of(tensors, block):
    return sum(-(-tensor.nbytes // block) * block for tensor in tensors)


@pytest.mark.parametrize("name", ["gpt2", "resnet"])
def test_parameters_are_those_of_the_model(name, device):
    tool = PeakMemory()
    with amanda.apply(tool):
        model, step = made(device, name)
        step()
        step()
    found = {row.kind: row.bytes for row in tool.rows("kind")}["parameter"]
    # The allocator of a GPU gives blocks of 512 bytes.
    assert found == pytest.approx(bytes_of(model.parameters(), 1 if device.type == "cpu" else 512), rel=0.02)


@pytest.mark.parametrize("name", ["gpt2", "resnet"])
def test_the_peak_is_the_allocators(name, cuda):
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    tool = PeakMemory()
    with amanda.apply(tool):
        _, step = made(cuda, name)
        step()
        step()
    assert tool.peak_bytes["cuda:0"] == pytest.approx(torch.cuda.max_memory_allocated() - before, rel=0.02)


def test_out_of_memory(cuda):
    tool, kept = PeakMemory(), []

    def program():
        while True:
            kept.append(torch.empty(1 << 32, device=cuda))

    with pytest.raises(torch.OutOfMemoryError), amanda.apply(tool):
        program()
    assert tool.at_error is not None
    assert sum(row.bytes for row in tool.at_error.rows("kind")) >= len(kept) << 32


def test_a_look_keeps_nothing(cuda):
    _, step = made(cuda)
    step()
    sizes = []
    with amanda.apply(Look()):
        for _ in range(30):
            step()
            sizes.append(torch.cuda.memory_allocated())
    assert sizes[-1] <= sizes[2]
