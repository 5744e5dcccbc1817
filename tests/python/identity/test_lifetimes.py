"""Tensors are told apart for as long as they live, without references on them and without searching for them."""

import copy
import gc
import pickle
import weakref

import amanda
import pytest
import torch
from torch import nn
from torch.autograd import forward_ad

x = torch.ones(2, 4)


class Ids(amanda.Tool):
    def __init__(self, **options):
        super().__init__()
        self.runs = []
        self.add_inst_for_op(self.analyze, **options)

    def analyze(self, context):
        id = context.op_id
        context.insert_before_op(lambda: self.runs.append(id), inputs=[])


class Operands(amanda.Tool):
    """The forward operands that analyses of backward operators were shown."""

    def __init__(self, **options):
        super().__init__()
        self.shown = {}
        self.add_inst_for_op(self.analyze, backward=True, **options)

    def analyze(self, context):
        if context.is_backward():
            self.shown[context.backward_op.__name__] = context.inputs


def programs():
    net = nn.Linear(4, 4)
    made = [
        lambda: nn.Parameter(torch.ones(4, 4)),
        lambda: copy.deepcopy(net).weight,
        lambda: pickle.loads(pickle.dumps(net)).weight,
        lambda: net.weight,
    ]
    return [lambda make=make: [torch.mm(x, make()) for _ in range(20)] for make in made]


@pytest.mark.parametrize("program", programs())
def test_no_parameter_is_searched_for_by_the_garbage_collector(program, monkeypatch):
    def search(*_):
        raise AssertionError("searched")

    monkeypatch.setattr(gc, "get_objects", search)
    monkeypatch.setattr(gc, "get_referrers", search)
    tool = Ids(ops="mm")
    with amanda.apply(tool, Ids()):
        program()
    assert len(tool.runs) == 20


def test_no_tensor_gets_a_weak_reference():
    weight, frozen = nn.Parameter(torch.ones(4, 4)), nn.Parameter(torch.ones(4, 4), requires_grad=False)
    net = nn.BatchNorm1d(4)
    with amanda.apply(Operands(), Ids()):
        result = torch.mm(net(torch.mm(x, weight)), frozen)
        for tensor in (weight, frozen, result, *net.parameters(), *net.buffers()):
            assert weakref.getweakrefs(tensor) == []


def test_loose_parameters_may_be_swapped_and_keep_their_ids():
    first, second = nn.Parameter(torch.ones(4, 4)), nn.Parameter(torch.zeros(4, 4))

    def step():
        for weight in (first, second):
            torch.mm(x, weight)

    def exchange():
        torch.utils.swap_tensors(first, second)
        yield
        torch.utils.swap_tensors(first, nn.Parameter(torch.ones(4, 4)))
        gc.collect()
        yield

    tool = Ids(ops="mm")
    with amanda.apply(tool):
        exchanges = exchange()
        for _ in range(3):
            step()
            next(exchanges, None)
    assert len(set(tool.runs)) == 2
    assert tool.runs == 3 * tool.runs[:2]


def test_results_may_be_swapped_while_a_backward_tool_looks():
    first, second = (torch.ones(2, 4, requires_grad=True) for _ in range(2))
    with amanda.apply(Operands()):
        a, b = first * 1, second * 2
        expected = b.clone()
        torch.utils.swap_tensors(a, b)
        assert torch.equal(a, expected)


def test_a_backward_context_shows_the_very_tensors_that_python_still_has():
    start = torch.ones(2, 4, requires_grad=True)
    tool = Operands()
    with amanda.apply(tool):
        middle = start * 2
        kept = middle.exp()
        gone = weakref.ref(middle)
        kept.relu().sum().backward()
    assert tool.shown["ReluBackward0"][0] is kept
    assert tool.shown["ExpBackward0"][0] is middle
    del middle, tool
    gc.collect()
    assert gone() is None


def test_a_backward_context_shows_what_only_the_graph_keeps():
    """`weight.t()` inside aten::linear has no Python object; the node of aten::addmm saves it."""
    layer, tool = nn.Linear(4, 3), Operands(nested=True)
    batch = torch.ones(2, 2, 4, requires_grad=True)
    with amanda.apply(tool):
        layer(batch).sum().backward()
    bias, _, weight = tool.shown["AddmmBackward0"][:3]
    assert bias is layer.bias
    assert torch.equal(weight, layer.weight.t())


def test_forward_gradients_are_as_without_a_tool():
    weight = nn.Parameter(torch.ones(4, 4))
    tangent = torch.full((4, 4), 3.0)

    def derivative():
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(weight, tangent)
            inside = forward_ad.unpack_dual(torch.mm(x, dual)).tangent
            assert forward_ad.unpack_dual(weight).tangent is None
        return inside

    expected = derivative()
    with amanda.apply(Ids()):
        torch.mm(x, weight)
        assert torch.equal(derivative(), expected)
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(nn.Parameter(torch.ones(4, 4)), tangent)
            torch.mm(x, dual)  # first seen while it has a tangent
            assert torch.equal(forward_ad.unpack_dual(dual).tangent, tangent)
            del dual
    assert torch.equal(derivative(), expected)


def test_a_numbered_parameter_is_copied_and_pickled_as_before():
    weight = nn.Parameter(torch.ones(4, 4))
    expected, attributes = pickle.dumps(weight), dict(vars(weight))
    with amanda.apply(Ids()):
        torch.mm(x, weight)
    assert pickle.dumps(weight) == expected
    assert vars(weight) == attributes
    assert torch.equal(copy.deepcopy(weight), weight)


def test_a_parameter_that_its_module_gave_up_is_not_taken_for_the_new_one():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight, self.given_up = nn.Parameter(torch.ones(4, 4)), []

        def forward(self, x):
            for weight in (self.weight, *self.given_up):
                torch.mm(x, weight)

    model, tool = Two(), Ids(ops="mm")
    with amanda.apply(tool):
        model(x)
        model.given_up.append(model.weight)
        model.weight = nn.Parameter(torch.zeros(4, 4))
        model(x)
    named, new, old = tool.runs
    assert named == new
    assert old != new
