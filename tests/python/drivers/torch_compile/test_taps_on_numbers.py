"""Operands that are numbers, which depend on sizes that the compiled code leaves open."""

import contextlib

import amanda
import pytest
import torch
from torch._dynamo.utils import counters
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from unharmed import bits


def scaled(x):
    return x * x.shape[1] ** -0.5


def scaled_in_place(x):
    return x.clone().mul_(x.shape[1] ** -0.5)


def clamped(x):
    return x.clamp(min=x.shape[1] ** -0.5) + x


def filled(x):
    return torch.full_like(x, x.shape[1] ** -0.5) * x


def added(x):
    return torch.add(x, x.sin(), alpha=1 / x.shape[1])


def powered(x):
    return x.abs() ** (x.shape[0] / 2)


def counted(x):
    return (x * x.shape[1]).clamp(max=x.shape[0]) / x.shape[0]


def attention(x):
    return F.scaled_dot_product_attention(x[None], x[None], x[None], scale=x.shape[1] ** -0.5)


def recomputed(x):
    return checkpoint(lambda x: clamped(scaled(x)), x, use_reentrant=False)


PROGRAMS = [scaled, scaled_in_place, clamped, filled, added, powered, counted, attention, recomputed]


NAMED = {"mul", "mul_", "clamp", "full_like", "add", "pow", "div", "scaled_dot_product_attention"}


class Numbers(amanda.Tool):
    """The operands that are numbers, or tensors with one element, by operator."""

    def __init__(self):
        super().__init__()
        self.seen = set()
        self.add_inst_for_op(self.analyze)

    def analyze(self, context):
        context.insert_before_op(self.look, name=context.op.__name__)
        context.insert_after_op(lambda *results: None)

    def look(self, *operands, name):
        for position, operand in enumerate(operands):
            if isinstance(operand, int | float) or (isinstance(operand, torch.Tensor) and operand.dim() == 0):
                self.seen.add((name, position, float(operand)))


@pytest.fixture(autouse=True)
def anew():
    torch._dynamo.reset()


def run(function, rows):
    x = torch.linspace(-1, 1, rows * 6).reshape(rows, 6).clone().requires_grad_()
    result = function(x)
    result.sum().backward()
    return result.detach(), x.grad


@pytest.mark.parametrize("backend", ["eager", "aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
@pytest.mark.parametrize("program", PROGRAMS)
def test_their_values_are_those_of_eager_mode(program, backend):
    compiled, eager, graph = torch.compile(program, dynamic=True, backend=backend), Numbers(), Numbers()
    expected = [run(compiled, rows) for rows in (4, 5)]
    with amanda.apply(eager):
        for rows in 4, 5:
            run(program, rows)
    with amanda.apply(graph, compiled="graph"):
        found = [run(compiled, rows) for rows in (4, 5)]
    seen = {each for each in eager.seen if each[0] in NAMED}
    assert seen <= graph.seen
    assert seen
    for ours, theirs in zip(found, expected, strict=True):
        assert all(map(torch.allclose if backend == "inductor" else torch.equal, ours, theirs))


@pytest.mark.parametrize("program", [clamped, filled, added])
def test_an_operator_with_such_an_operand_is_not_replaced(program):
    def replace(context):
        context.replace_op(lambda *operands: operands[0])

    tool = amanda.Tool("replaces")
    tool.add_inst_for_op(replace, ops=["clamp", "full_like", "add"])
    with (
        pytest.raises(amanda.Error, match="one of its operands is a number that is no integer, and known only when"),
        amanda.apply(tool, compiled="graph"),
    ):
        run(torch.compile(program, dynamic=True, backend="aot_eager"), 4)


def test_a_replacement_gets_such_a_number_where_a_tensor_may_stand():
    def replace(context):
        original = context.op
        context.replace_op(lambda x, number: original(x, number) + number)

    tool = amanda.Tool("replaces")
    tool.add_inst_for_op(replace, ops="mul")
    found = []
    for how in "eager", "graph":
        with amanda.apply(tool, compiled=how):
            found.append(run(torch.compile(scaled, dynamic=True, backend="aot_eager"), 4))
    assert all(map(torch.equal, *found))


def test_such_a_number_is_not_edited():
    tool = amanda.Tool("edits")
    tool.add_inst_for_op(lambda context: context.insert_before_op(lambda other: other * 2, inputs=["other"]), ops="mul")
    with (
        pytest.raises(amanda.Error, match="it is a number, which is fixed when the program is compiled"),
        amanda.apply(tool, compiled="graph"),
    ):
        run(torch.compile(scaled, dynamic=True, backend="aot_eager"), 4)


# As a coefficient that grows over the steps of a training.
CHANGING = [0.1, 0.7, -0.0, 1e-310, 1e300, float("inf"), *(i / 7 for i in range(1, 15))]


def by(x, factor):
    return x * factor


def by_twice(x, factor):
    return (x * (factor * 2) + factor).sum()


@pytest.mark.parametrize("program", [by, by_twice])
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_a_float_that_changes_from_call_to_call_compiles_as_often_as_without_tools(program, backend):
    def compilations(scope):
        torch._dynamo.reset()
        counters.clear()
        compiled, left = torch.compile(program, backend=backend, fullgraph=True), []
        for value in CHANGING:
            x = torch.linspace(-1, 1, 3).requires_grad_()
            with scope:
                result = compiled(x, value)
                result.sum().backward()
            left += [result.detach(), x.grad]
        return counters["stats"]["unique_graphs"], bits(left)

    numbers, tool = [], amanda.Tool("looks")
    tool.add_inst_for_op(
        lambda context: context.insert_before_op(lambda x, factor: numbers.append(float(factor))), ops="mul"
    )
    plain = compilations(contextlib.nullcontext())
    assert compilations(amanda.apply(tool, compiled="graph")) == plain
    times = {by: 1, by_twice: 2}[program]
    assert list(map(repr, numbers)) == [repr(value * times) for value in CHANGING]
