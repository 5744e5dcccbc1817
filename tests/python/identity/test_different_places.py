"""Operators at different places, or on different parameters, have different ids."""

import collections
import copy
import functools
import gc
import random

import amanda
import pytest
import torch
from amanda.drivers.torch.identity import lifetimes, operands
from op_ids import Ids, Model, ids, ids_of, x
from torch import nn


def test_one_relu_used_at_two_places_has_two_ids():
    model = Model()
    assert len(set(ids_of("relu", ids(lambda: model(x))))) == 6


def test_one_relu_used_at_three_places_of_a_script_has_three_ids():
    act = nn.ReLU()

    def program():
        a = act(x)
        b = act(a)
        return act(b)

    assert len(set(ids(program))) == 3


def test_siblings_in_a_sequential_have_their_own_ids():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU())
    assert len(set(ids(lambda: model(x)))) == 4


def test_a_loop_over_weights_keeps_them_apart():
    weights = [torch.randn(4, 4, requires_grad=True) for _ in range(3)]

    def program():
        for _ in range(2):
            for weight in weights:
                torch.mm(x, weight)

    runs = ids(program)
    assert len(set(runs)) == 3
    assert runs[:3] == runs[3:]


def test_one_mask_never_reaches_another_weight():
    class Mask(amanda.Tool):
        def __init__(self):
            super().__init__()
            self.add_inst_for_op(self.analyze, ops="linear")

        def analyze(self, context):
            context.insert_before_op(self.check, inputs=[1], own=context.inputs[1].detach().clone())

        def check(self, weight, own):
            assert torch.equal(weight, own)

    class Weights(nn.Module):
        def __init__(self):
            super().__init__()
            self.weights = nn.ParameterList(torch.randn(4, 4) for _ in range(4))

        def forward(self, x):
            for weight in self.weights:
                x = torch.nn.functional.linear(x, weight)
            return x

    scope = amanda.apply(Mask())
    for _ in range(20):
        model = Weights()
        with scope:
            model(x)
            model(x)
        del model
        gc.collect()


def test_two_models_of_one_class_have_their_own_ids():
    first, second = Model(), Model()
    assert not set(ids(lambda: first(x))) & set(ids(lambda: second(x)))


def test_the_ids_of_a_freed_model_never_pass_to_a_new_one():
    seen = set()
    for _ in range(5):
        model = Model()
        now = set(ids_of("linear", ids(lambda m=model: m(x))))
        assert not now & seen
        seen |= now
        del model
        gc.collect()


def test_the_ids_of_a_freed_loose_parameter_never_pass_to_a_new_one():
    def program(weight):
        torch.mm(x, weight)

    seen = []
    for _ in range(5):
        weight = torch.randn(4, 4, requires_grad=True)
        seen += ids(lambda w=weight: program(w))
        del weight
        gc.collect()
    assert len(set(seen)) == 5


def test_each_of_many_freed_loose_parameters_had_its_own_id():
    def program():
        for _ in range(100):
            torch.mm(x, torch.randn(4, 4, requires_grad=True))

    assert len(set(ids_of("mm", ids(program)))) == 100


class Normalised(nn.Module):
    """Operators on all its buffers at one place, inside; `scale` has another, outside."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.BatchNorm1d(4), nn.BatchNorm1d(4)
        self.own = nn.Buffer(torch.ones(4))

    def forward(self, x):
        for buffer in self.floats():
            torch.neg(buffer)
        return self.second(self.first(x))

    def floats(self):
        return [buffer for buffer in self.buffers() if buffer.is_floating_point()]

    def scale(self):
        for buffer in self.floats():
            buffer.mul_(0.9)


def test_a_loop_over_buffers_keeps_them_apart():
    model = Normalised()

    def step():
        model(x)
        model.scale()

    runs = ids(lambda: [step() for _ in range(3)])
    for name in ("mul_", "neg"):
        each = ids_of(name, runs)
        assert len(set(each)) == 5
        assert each == 3 * each[:5]
    assert len(set(ids_of("batch_norm", runs))) == 2


def test_buffers_have_their_names_in_the_model():
    first, second = Normalised(), Normalised()

    def scaled(model):
        model(x)
        for name in ("first.running_mean", "own"):
            model.get_buffer(name).mul_(0.9)

    assert set(ids_of("mul_", ids(lambda: scaled(first)))).isdisjoint(ids_of("mul_", ids(lambda: scaled(second))))


def test_exchanged_buffers_keep_their_ids():
    model = Normalised()

    def step():
        model(x)
        model.scale()

    before = ids(step)
    model.to(torch.float64).to(torch.float32)
    assert ids(step) == before
    model.first.running_mean = torch.zeros(4)
    assert ids(step) == before
    model.second.register_buffer("running_var", torch.ones(4))
    assert ids(step) == before
    model.load_state_dict(copy.deepcopy(model).state_dict(), assign=True)
    assert ids(step) == before
    torch.utils.swap_tensors(model.first.running_mean, torch.ones(4))
    assert ids(step) == before


def test_exchanged_buffers_are_not_taken_for_what_is_no_buffer():
    model = Normalised()
    ids(lambda: model(x))

    def program():
        for tensor in (x, *model.floats()):  # x comes first: the place is known without a buffer
            tensor.mul(2)

    before = ids(program)
    assert len(set(before)) == 6
    model.to(torch.float64)
    assert ids(program) == before
    model.own = torch.zeros(4)
    assert ids(program) == before


def test_numbers_of_a_freed_model_are_freed():
    def count():
        gc.collect()
        lifetimes.tell()
        return len(operands._homes) + len(operands.registered)

    def run(model):
        ids(lambda: (model(x), model.scale()))
        assert count() > before

    before = count()
    run(Normalised())
    assert count() <= before


def test_frozen_parameters_of_a_tensor_subclass_count():
    class Special(torch.Tensor):
        pass

    weights = [nn.Parameter(torch.randn(4, 4).as_subclass(Special), requires_grad=False) for _ in range(3)]
    assert type(weights[0]) is Special

    def program():
        for _ in range(2):
            for weight in weights:
                torch.mm(x, weight)

    runs = ids_of("mm", ids(program))
    assert len(set(runs)) == 3
    assert runs[:3] == runs[3:]


class TwoWeights(nn.Module):
    """Uses its parameters at one place, in a random order, and notes which came when."""

    def __init__(self):
        super().__init__()
        self.a, self.b = (nn.Parameter(torch.randn(4, 4)) for _ in range(2))
        self.used = []

    def forward(self, x):
        for name in random.sample("ab", 2):
            self.used.append(name)
            torch.mm(x, getattr(self, name))

    def ids_by_name(self, runs):
        found = collections.defaultdict(set)
        for name, id in zip(self.used, ids_of("mm", runs), strict=True):
            found[name].add(id)
        return found


def exchange_by_assigning(model):
    for name in random.sample("ab", 2):
        setattr(model, name, nn.Parameter(torch.randn(4, 4)))


def exchange_by_deleting(model):
    del model.a, model.b
    exchange_by_assigning(model)


@pytest.mark.parametrize("exchange", [exchange_by_assigning, exchange_by_deleting])
def test_a_parameter_that_gets_the_address_of_another_is_not_taken_for_it(exchange):
    model = TwoWeights()

    def program():
        for _ in range(200):
            exchange(model)
            model(x)

    by_name = model.ids_by_name(ids(program))
    assert len(by_name["a"]) == len(by_name["b"]) == 1
    assert by_name["a"] != by_name["b"]


def test_leaves_that_stand_for_parameters_in_a_functional_call_are_not_mixed_up():
    model = TwoWeights()

    def program():
        for _ in range(200):
            leaves = {name: torch.randn(4, 4).requires_grad_() for name in random.sample("ab", 2)}
            torch.func.functional_call(model, leaves, (x,))

    by_name = model.ids_by_name(ids(program))
    assert len(by_name["a"]) == len(by_name["b"]) == 1
    assert by_name["a"] != by_name["b"]


def test_building_a_model_in_a_scope_does_not_scan_for_each_parameter(monkeypatch):
    scans = []
    find = gc.get_objects

    def get_objects():
        scans.append(1)
        return find()

    ids(lambda: Model()(x))
    monkeypatch.setattr(gc, "get_objects", get_objects)
    built = []
    ids(lambda: built.append(Model()))  # initialising a parameter is an operator on it
    assert not scans


def test_compiling_a_module_that_assigns_its_buffers_works():
    class Counts(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("calls", torch.zeros(1))

        def forward(self, x):
            self.calls = self.calls + 1
            return x * self.calls

    model = Counts()
    for policy in ("eager", "opaque"):
        with amanda.apply(Ids(), compiled=policy):
            model(x)
            torch.compile(model, backend="eager", fullgraph=True)(x)
    assert model.calls == 4


def test_lambdas_comprehensions_and_partials_are_places():
    add = functools.partial(torch.add, x)

    def program():
        (lambda: torch.relu(x))()
        (lambda: torch.relu(x))()
        [torch.relu(x) for _ in range(3)]
        add(x)
        add(x)

    runs = ids(program)
    assert len(set(ids_of("relu", runs))) == 3
    assert len(set(ids_of("add", runs))) == 2


def test_generators_are_places():
    def numbers():
        yield torch.relu(x)
        yield torch.relu(x)

    runs = ids(lambda: [list(numbers()) for _ in range(2)])
    assert len(set(runs)) == 2
    assert runs[:2] == runs[2:]


def test_deep_recursion_works():
    def down(depth):
        return torch.relu(x) if depth == 0 else down(depth - 1)

    for _ in range(2):
        assert len(ids(lambda: down(500))) == 1
