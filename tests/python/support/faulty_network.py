"""A network that is hit by faults by hand, at each place that ErrorInjection hits."""

import amanda
import torch
import torch.nn.functional as F
from amanda.research.error_injection import BitFlip, ErrorInjection

INTEGERS = {2: torch.int16, 4: torch.int32}


def flipped(tensor, index, bit):
    """A copy with one bit inverted."""
    copied = tensor.detach().clone()
    cells = copied.view(INTEGERS[copied.dtype.itemsize])
    cells[index] = cells[index] ^ (1 << bit)
    return copied


class Network(torch.nn.Module):
    """Two layers of each kind; `faulty` is called with every value that the test hits by hand."""

    def __init__(self, faulty=lambda name, value: value):
        super().__init__()
        self.conv = torch.nn.Conv2d(2, 4, 3)
        self.fc = torch.nn.Linear(4 * 16, 5)
        self.faulty = faulty

    def forward(self, x):
        x = self.layer("conv", F.conv2d, x).relu().flatten(1)
        return self.layer("fc", F.linear, x)

    def layer(self, name, function, x):
        weight, bias = self.get_submodule(name).parameters()
        x, weight = self.faulty(f"{name} input", x), self.faulty(f"{name} weight", weight)
        return self.faulty(f"{name} output", function(x, weight, bias))


def network(faulty=lambda name, value: value):
    torch.manual_seed(0)
    return Network(faulty)


def faults_of(model, x, **options):
    tool = ErrorInjection(BitFlip(), **options)
    with amanda.apply(tool):
        model(x)
    return [(row.name, row.index, row.bit) for row in tool.rows()]
