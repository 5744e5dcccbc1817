"""GraphTracing's edges: views, writes, lists, numbers and tensors from outside."""

import amanda
import pytest
import torch
from amanda.tools.graph import GraphTracing
from traced_graphs import name_of, node_of, producers_of, traced_by


def test_positions_say_which_input_takes_a_result():
    def program(x):
        a, b = x.relu(), x.sigmoid()
        torch.addcmul(a, b, a)

    graph = traced_by(program, torch.ones(2))
    add, relu, sigmoid = (node_of(graph, name) for name in ("addcmul", "relu", "sigmoid"))
    assert graph.producers(add) == {relu: [0, 2], sigmoid: [1]}
    assert graph.consumers(relu) == {add: [0, 2]}


def test_a_write_reaches_its_readers_by_memory():
    def program(x):
        y = x.clone()
        y.relu_()
        y.exp()  # after relu_, though it takes the same y
        y[0] = 1
        y.neg()  # of clone's, relu_'s and fill_'s values

    graph = traced_by(program, torch.ones(2, 2))
    assert producers_of(graph, "exp") == {"relu_"}
    assert producers_of(graph, "neg") == {"relu_", "fill_"}


def test_a_write_to_the_whole_reaches_views_made_before():
    def program(x):
        y = x.clone()
        row = y[0]
        y.mul_(x)
        row.neg()

    assert producers_of(traced_by(program, torch.ones(2, 2)), "neg") == {"select", "mul_"}


def test_a_write_to_one_chunk_does_not_reach_another():
    def program(x):
        left, right = x.clone().chunk(2, dim=1)  # their elements alternate in memory
        left.sigmoid_()
        right.neg()
        left.exp()

    graph = traced_by(program, torch.ones(2, 4))
    assert producers_of(graph, "neg") == {"chunk"}
    assert producers_of(graph, "exp") == {"sigmoid_"}


def test_a_write_to_every_other_element_does_not_reach_those_between():
    def program(x):
        y = x.clone()
        even, between = y[::2], y[1:2]
        even.sigmoid_()
        between.neg()

    assert producers_of(traced_by(program, torch.ones(6)), "neg") == {"slice"}


def test_a_view_that_covers_the_same_memory_is_told_from_its_base():
    def program(x):
        y = x.exp()
        mean, spread = y.detach().mean(), y.detach().std()
        y.sub(mean).div(spread)
        (y + 1).neg()

    graph = traced_by(program, torch.rand(4))
    assert producers_of(graph, "mean") == {"detach"}
    assert producers_of(graph, "sub") == {"exp", "mean"}
    assert producers_of(graph, "div") == {"sub", "std"}
    assert producers_of(graph, "add") == {"exp"}


def test_out_arguments_and_lists_are_written_and_read():
    def program(x):
        out = torch.empty(2)
        torch.add(x, x, out=out)
        parts = [out.neg(), out.exp()]
        torch._foreach_mul_(parts, 2.0)
        torch.stack(parts).unbind(0)[1].abs()

    graph = traced_by(program, torch.ones(2))
    assert producers_of(graph, "neg") == {"add"}
    assert producers_of(graph, "_foreach_mul_") == {"neg", "exp"}
    assert producers_of(graph, "stack") == {"_foreach_mul_"}
    assert producers_of(graph, "abs") == {"unbind"}


def test_python_numbers_are_no_nodes_and_scalar_tensors_are():
    factor = torch.tensor(3)

    def program(x):
        x.mul(2).add(2.5).sub(factor)

    graph = traced_by(program, torch.ones(2, dtype=torch.float64))
    outside = [(node.kind, node.name, name_of(*graph.consumers(node))) for node in graph if node.kind != "operator"]
    assert outside == [("input", "self", "mul"), ("input", "other", "sub")]


def test_parameters_and_inputs_are_nodes_of_their_own_named_by_their_first_use():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    model[1].weight = model[0].weight
    graph = traced_by(model, torch.ones(1, 2))
    found = [(node.kind, node.name, node.module_path) for node in graph]
    assert found == [
        ("operator", "aten::linear", "0"),
        ("input", "input", "0"),
        ("parameter", "weight", "0"),
        ("parameter", "bias", "0"),
        ("operator", "aten::linear", "1"),
        ("parameter", "bias", "1"),
    ]
    (shared,) = (node for node in graph if node.name == "weight")
    assert list(graph.consumers(shared).values()) == [[1], [1]]


def test_a_loop_is_a_cycle():
    def program(x):
        for _ in range(3):
            x = torch.tanh(x)

    graph = traced_by(program, torch.ones(2))
    tanh = node_of(graph, "tanh")
    assert tanh in graph.producers(tanh)
    assert producers_of(graph, "tanh") == {"self", "tanh"}


def test_complex_meta_and_nested_tensors_have_edges():
    def program(x):
        x.to(torch.complex64).conj().mul(x)
        x.to("meta").neg()
        torch.nested.nested_tensor([x, x], layout=torch.jagged).exp()

    graph = traced_by(program, torch.ones(2))
    assert producers_of(graph, "mul") == {"_conj", "self"}
    assert producers_of(graph, "neg") == {"to"}
    assert "_nested_view_from_jagged" in producers_of(graph, "exp")


@pytest.mark.parametrize("transform", [lambda f: torch.vmap(f), lambda f: torch.func.grad(lambda x: f(x).sum())])
def test_edges_inside_function_transforms(transform):
    graph = traced_by(transform(lambda x: (x.exp() * 2).relu() + 0.5), torch.ones(3))
    assert producers_of(graph, "mul") == {"exp"}
    assert producers_of(graph, "relu") == {"mul"}
    assert producers_of(graph, "add") == {"relu"}


def test_sparse_tensors_are_passed_over():
    graph = traced_by(lambda x: x.to_sparse().to_dense().neg(), torch.ones(2))
    assert producers_of(graph, "to_dense") == set()
    assert producers_of(graph, "neg") == {"to_dense"}


def test_a_tensor_made_out_of_sight_inherits_nothing_from_one_that_is_gone():
    def program():
        for _ in range(300):
            torch.ones(4).exp()  # both freed at once: their memory is reused
            with amanda.disabled():
                y = torch.zeros(4)
            y.neg()

    graph = traced_by(program)
    assert producers_of(graph, "neg") == {"self"}
    assert producers_of(graph, "exp") == {"ones"}


@pytest.mark.parametrize("tracing_first", [False, True])
def test_what_a_tool_puts_in(tracing_first, after, before):
    tracing = GraphTracing()
    after, before = after("exp", lambda x: x + 1), before("neg", lambda x: x + 1)
    with amanda.apply(*([tracing, after, before] if tracing_first else [after, before, tracing])):
        torch.ones(2).exp().neg().abs()
    assert producers_of(tracing.graph, "neg") == ({"self"} if tracing_first else {"exp", "self"})
    assert producers_of(tracing.graph, "abs") == {"neg"}
