"""GraphTracing leaves training alone, holds on to no tensor, and does not grow."""

import copy
import gc
import threading
import weakref

import amanda
import torch
from amanda.tools.graph import GraphTracing, storages
from traced_graphs import Mlp, described, producers_of, traced_by


def test_a_training_step_is_bit_equal_under_it():
    model = torch.nn.Sequential(
        torch.nn.Linear(4, 8),
        torch.nn.BatchNorm1d(8),
        torch.nn.ReLU(inplace=True),
        torch.nn.Dropout(),
        torch.nn.Linear(8, 2),
    )

    def train(model):
        torch.manual_seed(0)
        optimizer, outputs = torch.optim.Adam(model.parameters()), []
        for _ in range(3):
            outputs.append(model(torch.randn(6, 4)))
            outputs[-1].square().sum().backward()
            optimizer.step()
        gradients = [parameter.grad for parameter in model.parameters()]
        return [*outputs, *gradients, *model.state_dict().values(), torch.get_rng_state()]

    expected = train(copy.deepcopy(model))
    with amanda.apply(GraphTracing()):
        found = train(model)
    assert len(found) == len(expected)
    assert all(map(torch.equal, found, expected))


class OwnFunction(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        cls.called.append(function)
        return super().__torch_function__(function, types, args, kwargs or {})


def test_no_code_of_a_subclass_is_called():
    def called(program):
        OwnFunction.called = []
        program(torch.ones(2, dtype=torch.float64).as_subclass(OwnFunction))
        return OwnFunction.called

    def program(x):
        x.sum().mul_(2).neg()
        torch._foreach_add_([x], 1.0)

    with amanda.apply(GraphTracing()):
        found = called(program)
    assert found == called(program)


def test_tensors_die_and_their_memory_with_them():
    tracing, x = GraphTracing(), torch.ones(2)
    with amanda.apply(tracing):
        y = torch.relu(x)
        gone, freed = [weakref.ref(x), weakref.ref(y)], y.untyped_storage()._weak_ref()
        del x, y
        gc.collect()
        assert [ref() for ref in gone] == [None, None]
        assert torch.UntypedStorage._expired(freed)
    torch.UntypedStorage._free_weak_ref(freed)


def test_tables_do_not_grow_in_a_long_loop(monkeypatch):
    monkeypatch.setattr(storages, "MAX_VIEWS", 64)
    tracing, history = GraphTracing(), torch.zeros(10_000)
    sizes = set()
    with amanda.apply(tracing):
        for i in range(10_000):
            y = torch.ones(2).mul_(i)
            history[i] = y.sum()
            sizes.add(len(tracing.graph))
            assert len(tracing._edges["storages"]._storages.sizes()) <= 128
    assert max(sizes) == len(tracing.graph) <= 10
    assert all(views <= 64 and writes <= 1 for views, writes in tracing._edges["storages"]._storages.sizes())
    assert producers_of(tracing.graph, "copy_") == {"select", "sum"}
    assert producers_of(tracing.graph, "select") == {"self"}


def test_views_beyond_the_limit_count_as_made_by_the_last_forgotten(monkeypatch):
    monkeypatch.setattr(storages, "MAX_VIEWS", 8)
    graph = traced_by(lambda x: x.clone().unbind(0)[3].neg(), torch.ones(100))
    assert producers_of(graph, "neg") == {"unbind"}


def test_traced_once_an_operator_costs_nothing_and_its_graph_is_that_of_the_first_run():
    model, x, tracing = Mlp(), torch.ones(1, 8), GraphTracing(once=True)
    scope = amanda.apply(tracing)
    with scope:
        model(x)
        traced = tracing.graph.to_json()
        assert scope.describe().rows() == []
        for _ in range(2):
            model(x)
    assert traced == tracing.graph.to_json()
    assert described(tracing.graph)[1] == described(traced_by(model, x))[1]


def test_swapping_parameters_works_inside_a_scope():
    model, other, tracing = Mlp(), Mlp(), GraphTracing()
    with amanda.apply(tracing):
        model(torch.ones(1, 8))
        torch.utils.swap_tensors(model.first.weight, torch.nn.Parameter(torch.zeros(8, 8)))
        model.load_state_dict(other.state_dict(), assign=True)
        torch.__future__.set_swap_module_params_on_conversion(True)
        try:
            model.double()
        finally:
            torch.__future__.set_swap_module_params_on_conversion(False)
        model(torch.ones(1, 8, dtype=torch.float64))
    nodes = [node for node in tracing.graph if node.module_path == "first"]
    assert [node.name for node in nodes] == ["aten::linear", "weight", "bias"]


def test_checkpointed_regions_add_nothing_when_they_run_again():
    block = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(inplace=True), torch.nn.Linear(4, 4))
    x, gradient, tracing = torch.randn(2, 4, requires_grad=True), torch.ones(2, 4), GraphTracing()
    with amanda.apply(tracing):
        y = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)
        traced = tracing.graph.to_json()
        y.backward(gradient)
    assert tracing.graph.to_json() == traced


def test_several_threads_trace_into_one_graph():
    tracing, model, x = GraphTracing(), Mlp().eval(), torch.ones(1, 8)
    both_run = threading.Barrier(4)

    def work():
        both_run.wait()
        with amanda.apply(tracing):
            for _ in range(100):
                model(x)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert described(tracing.graph)[1] == described(traced_by(model, x))[1]
