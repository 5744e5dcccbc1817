"""GradientCuts: the rows of parameters that never got a gradient, and the passes in which one was zero."""

import amanda
import pytest
import torch
from amanda.tools.cuts import GradientCuts
from amanda.tools.cuts.program import Program

PASSES = 40  # it follows values no longer after the 17th


class Oracle:
    """Counts by hooks on the parameters, in numpy."""

    def __init__(self, parameters):
        self.rows = {name: set(range(one.shape[0] if one.dim() > 1 else 0)) for name, one in parameters.items()}
        self.gradients = dict.fromkeys(parameters, 0)
        for name, one in parameters.items():
            one.register_hook(lambda gradient, name=name: self.add(name, gradient))

    def add(self, name, gradient):
        found = gradient.detach().resolve_conj().to(torch.complex128).numpy() != 0
        self.gradients[name] += bool(found.any())
        self.rows[name] -= {row for row in self.rows[name] if found[row].any()}


def found_and_expected(parameters, loss_of):
    """Runs `loss_of(i)` for each pass; without zero_grad in every second one."""
    oracle, tool = Oracle(parameters), GradientCuts()
    with amanda.apply(tool):
        for i in range(PASSES):
            loss_of(i).backward()
            if i % 2:
                for one in parameters.values():
                    one.grad = None
    found = {row.name: (row.gradients, row.idle) for row in tool.rows()}
    return found, {name: (oracle.gradients[name], len(rows)) for name, rows in oracle.rows.items()}


def module_of(parameters):
    module = torch.nn.Module()
    for name, one in parameters.items():
        module.register_parameter(name, one)
    return module


def uses(one, i):
    """A row of its own from pass 3 on, and none in every third pass; the last two rows are never used."""
    row = min(i, one.shape[0] - 3)
    return one[row].abs().sum() * (i % 3 != 1)


LAYOUTS = {
    "contiguous": lambda one, i: uses(one, i),
    "transposed": lambda one, i: uses(one.t().contiguous().t(), i),
    "negative zeros": lambda one, i: (one * torch.where(torch.arange(9)[:, None] == i % 6, 1, -0.0)).abs().sum(),
    "NaN": lambda one, i: (one * torch.where(torch.arange(9)[:, None] == i % 6, torch.nan, 0)).sum(),
    "one element": lambda one, i: one[i % 5, -1],
}


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64], ids=str
)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_rows_and_passes_are_those_of_hooks(layout, dtype):
    torch.manual_seed(0)
    parameters = {"weight": torch.nn.Parameter(torch.randn(9, 130).to(dtype))}
    if layout == "transposed":
        parameters["weight"].data = parameters["weight"].data.t().contiguous().t()
    model = module_of(parameters)
    model.forward = lambda i: LAYOUTS[layout](model.weight, i).abs().float().sum()
    found, expected = found_and_expected(parameters, model)
    assert found == expected


@pytest.mark.parametrize("shape", [(), (1,), (7,), (1, 4), (5, 3), (5, 3, 2), (4, 3, 2, 2)], ids=str)
def test_shapes(shape):
    torch.manual_seed(0)
    parameters = {"weight": torch.nn.Parameter(torch.randn(shape)), "shift": torch.nn.Parameter(torch.randn(shape))}
    model = module_of(parameters)
    mask = (torch.arange(max(1, model.weight.numel())) % 3 == 0)[: model.weight.numel()].reshape(shape)
    model.forward = lambda i: (model.weight * mask).sum() * (i > 20) + (model.shift * (i > 38)).sum()
    found, expected = found_and_expected(parameters, model)
    # Once each row has got a gradient, none is read, and each that comes counts.
    assert {name: (gradients > 0, idle) for name, (gradients, idle) in found.items()} == {
        name: (gradients > 0, idle) for name, (gradients, idle) in expected.items()
    }


def test_the_first_gradient_of_a_leaf_alone_is_read_in_python(monkeypatch):
    read = []
    add_leaf = Program.add_leaf
    monkeypatch.setattr(Program, "add_leaf", lambda program, gradient: read.append(1) or add_leaf(program, gradient))
    model = module_of({"weight": torch.nn.Parameter(torch.ones(4, 2))})
    with amanda.apply(GradientCuts()):
        for i in range(PASSES):
            model.weight[i % 2].sum().backward()
    assert len(read) == 1


def test_a_reset_forgets_rows():
    weight = torch.nn.Parameter(torch.ones(4, 2))
    model = module_of({"weight": weight})
    model.forward = lambda row: model.weight[row].sum()
    tool = GradientCuts()
    with amanda.apply(tool):
        for row in (0, 1, 2):
            model(row).backward()
        tool.reset()
        model(3).backward()
        model(3).backward()
    (row,) = tool.rows()
    assert (row.gradients, row.idle) == (2, 3)


@pytest.mark.parametrize("make", [lambda: torch.nn.Embedding(5, 0), lambda: torch.nn.Embedding(5, 0, sparse=True)])
def test_a_parameter_without_elements_has_no_gradient_of_zero(make):
    empty = make()
    with amanda.apply(GradientCuts()) as cuts:
        for _ in range(2):
            (empty(torch.tensor([1])).sum() + torch.nn.Linear(2, 1)(torch.ones(2)).sum()).backward()
    assert cuts.findings() == []
