"""GraphTracing: its edges against torch.fx's, over iterations, through views and writes, and what it holds on to."""

import copy
import gc
import json
import re
import sys
import threading
import weakref

import amanda
import networkx
import pytest
import torch
import torch.nn.functional as F
from amanda.tools.graph import GraphTracing, storages
from repository import ROOT


class Mlp(torch.nn.Module):
    """Residual, an in-place operator, one module at two places, dropout that returns its input."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.last = (torch.nn.Linear(8, 8) for _ in range(3))
        self.activation = torch.nn.ReLU(inplace=True)
        self.dropout = torch.nn.Dropout(0.5)

    def forward(self, x):
        y = self.activation(self.first(x))
        z = self.dropout(self.activation(self.second(y)))
        return self.last(z + y), x.mean()


class Cnn(torch.nn.Module):
    """Concatenation, residual additions in place and not, a list of results."""

    def __init__(self):
        super().__init__()
        self.stem = torch.nn.Conv2d(3, 8, 3, padding=1)
        self.norm = torch.nn.BatchNorm2d(8)
        self.left, self.right = (torch.nn.Conv2d(4, 4, 3, padding=1) for _ in range(2))
        self.head = torch.nn.Linear(16, 2)

    def forward(self, x):
        identity = F.relu(self.norm(self.stem(x)), inplace=True)
        left, right = identity.chunk(2, dim=1)
        y = torch.cat([self.left(left), self.right(right)], dim=1)
        y = y.add_(identity)  # torch.fx would trace y += identity as y + identity
        y = torch.cat([y.relu(), y.sigmoid()], 1)
        return self.head(F.adaptive_avg_pool2d(y, 1).flatten(1))


class Attention(torch.nn.Module):
    """Functional operators, views of views, several results, a buffer, a parameter that is used twice."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(24, 8))
        self.output = torch.nn.Parameter(torch.randn(8, 8))
        self.register_buffer("mask", torch.ones(5, 5).tril() == 0)

    def forward(self, x):
        parts = F.linear(x, self.weight).split(8, dim=-1)
        q, k, v = self.heads(parts[0]), self.heads(parts[1]), self.heads(parts[2])
        scores = (q @ k.transpose(-2, -1)).div(2.0).masked_fill(self.mask, -1e9)
        heads = scores.softmax(-1) @ v
        y = F.linear(heads.transpose(1, 2).reshape(x.shape), self.output) + x
        best, where = y.max(-1, keepdim=True)
        return F.layer_norm(F.linear(y, self.output) - best, (8,)), where

    def heads(self, part):
        return part.view(part.size(0), -1, 2, 4).transpose(1, 2)


class Fx(torch.fx.Interpreter):
    """What torch.fx says: the operators in order, and who takes what; seen by running each node alone."""

    def __init__(self, model, recorder):
        super().__init__(torch.fx.symbolic_trace(model))
        self.recorder, self.operators, self.names = recorder(), [], []

    def run_node(self, node):
        before = len(self.recorder.ran)
        result = super().run_node(node)
        names = self.recorder.ran[before:]
        if names:
            assert len(names) == 1, f"{node} is several operators: {names}"
            self.operators.append(node)
            self.names += names
        return result

    def describe(self, *inputs):
        with amanda.apply(self.recorder):
            self.run(*inputs)
        edges, outside = set(), {}
        for i, consumer in enumerate(self.operators):
            for node in filter(None, map(self.maker, consumer.all_input_nodes)):
                if node in self.operators:
                    edges.add((self.operators.index(node), i))
                else:
                    outside.setdefault(node.target, set()).add(i)
        return self.names, edges, sorted(map(sorted, outside.values()))

    def maker(self, node):
        """The operator or the outside tensor behind a node; None for a size and the like."""
        if node in self.operators or node.op in ("placeholder", "get_attr"):
            return node
        return self.maker(node.args[0]) if node.name.startswith("getitem") else None


def described(graph):
    """A traced graph in the form of `Fx.describe`."""
    operators = [node for node in graph if node.kind == "operator"]
    edges = {
        (operators.index(p), i) for i, node in enumerate(operators) for p in graph.producers(node) if p in operators
    }
    outside = [sorted(map(operators.index, graph.consumers(node))) for node in graph if node not in operators]
    return [node.name.removeprefix("aten::") for node in operators], edges, sorted(outside)


MODELS = [(Mlp, (4, 8)), (Cnn, (2, 3, 6, 6)), (Attention, (3, 5, 8))]


@pytest.mark.parametrize(("model", "shape"), MODELS)
def test_the_edges_are_those_of_torch_fx(model, shape, recorder):
    model, x = model().eval(), torch.randn(shape)
    names, edges, outside = described(_traced(model, x))
    fx_names, fx_edges, fx_outside = Fx(model, recorder).describe(x)
    assert names == fx_names
    assert edges == fx_edges
    if isinstance(model, Attention):  # the others' parameters are inside fx's leaves
        assert outside == fx_outside
    else:
        assert all(consumers in outside for consumers in fx_outside)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(("model", "shape"), MODELS)
def test_an_iteration_that_does_the_same_again_adds_nothing(model, shape, training):
    model = model().train(training)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    tracing, texts = GraphTracing(), []
    with amanda.apply(tracing):
        for _ in range(4):
            result = model(torch.randn(shape))
            (result if isinstance(result, torch.Tensor) else result[0]).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            texts.append(tracing.graph.to_json())
    assert len(set(texts)) == 1


def test_two_processes_trace_the_same_graph(fresh_python, forked_python):
    program = """
        import amanda, torch
        from amanda.tools.graph import GraphTracing
        tracing, model = GraphTracing(), torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
        with amanda.apply(tracing):
            model(torch.ones(1, 2))
        print(tracing.graph.to_json())
    """
    assert fresh_python(program) == forked_python(program)  # their hashes of strings differ


# ---- views, writes, lists --------------------------------------------------------------------------------------------


def test_positions_say_which_input_takes_a_result():
    def program(x):
        a, b = x.relu(), x.sigmoid()
        torch.addcmul(a, b, a)

    graph = _traced(program, torch.ones(2))
    add, relu, sigmoid = (_node(graph, name) for name in ("addcmul", "relu", "sigmoid"))
    assert graph.producers(add) == {relu: [0, 2], sigmoid: [1]}
    assert graph.consumers(relu) == {add: [0, 2]}


def test_a_write_reaches_its_readers_by_memory():
    def program(x):
        y = x.clone()
        y.relu_()
        y.exp()  # after relu_, though it takes the same y
        y[0] = 1
        y.neg()  # of clone's, relu_'s and fill_'s values

    graph = _traced(program, torch.ones(2, 2))
    assert _producers(graph, "exp") == {"relu_"}
    assert _producers(graph, "neg") == {"relu_", "fill_"}


def test_a_write_to_the_whole_reaches_views_made_before():
    def program(x):
        y = x.clone()
        row = y[0]
        y.mul_(x)
        row.neg()

    assert _producers(_traced(program, torch.ones(2, 2)), "neg") == {"select", "mul_"}


def test_a_write_to_one_chunk_does_not_reach_another():
    def program(x):
        left, right = x.clone().chunk(2, dim=1)  # their elements alternate in memory
        left.sigmoid_()
        right.neg()
        left.exp()

    graph = _traced(program, torch.ones(2, 4))
    assert _producers(graph, "neg") == {"chunk"}
    assert _producers(graph, "exp") == {"sigmoid_"}


def test_a_write_to_every_other_element_does_not_reach_those_between():
    def program(x):
        y = x.clone()
        even, between = y[::2], y[1:2]
        even.sigmoid_()
        between.neg()

    assert _producers(_traced(program, torch.ones(6)), "neg") == {"slice"}


def test_a_view_that_covers_the_same_memory_is_told_from_its_base():
    def program(x):
        y = x.exp()
        mean, spread = y.detach().mean(), y.detach().std()
        y.sub(mean).div(spread)
        (y + 1).neg()

    graph = _traced(program, torch.rand(4))
    assert _producers(graph, "mean") == {"detach"}
    assert _producers(graph, "sub") == {"exp", "mean"}
    assert _producers(graph, "div") == {"sub", "std"}
    assert _producers(graph, "add") == {"exp"}


def test_out_arguments_and_lists_are_written_and_read():
    def program(x):
        out = torch.empty(2)
        torch.add(x, x, out=out)
        parts = [out.neg(), out.exp()]
        torch._foreach_mul_(parts, 2.0)
        torch.stack(parts).unbind(0)[1].abs()

    graph = _traced(program, torch.ones(2))
    assert _producers(graph, "neg") == {"add"}
    assert _producers(graph, "_foreach_mul_") == {"neg", "exp"}
    assert _producers(graph, "stack") == {"_foreach_mul_"}
    assert _producers(graph, "abs") == {"unbind"}


def test_python_numbers_are_no_nodes_and_scalar_tensors_are():
    factor = torch.tensor(3)

    def program(x):
        x.mul(2).add(2.5).sub(factor)

    graph = _traced(program, torch.ones(2, dtype=torch.float64))
    outside = [(node.kind, node.name, _name(*graph.consumers(node))) for node in graph if node.kind != "operator"]
    assert outside == [("input", "self", "mul"), ("input", "other", "sub")]


def test_parameters_and_inputs_are_nodes_of_their_own_named_by_their_first_use():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    model[1].weight = model[0].weight
    graph = _traced(model, torch.ones(1, 2))
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

    graph = _traced(program, torch.ones(2))
    tanh = _node(graph, "tanh")
    assert tanh in graph.producers(tanh)
    assert _producers(graph, "tanh") == {"self", "tanh"}


def test_complex_meta_and_nested_tensors_have_edges():
    def program(x):
        x.to(torch.complex64).conj().mul(x)
        x.to("meta").neg()
        torch.nested.nested_tensor([x, x], layout=torch.jagged).exp()

    graph = _traced(program, torch.ones(2))
    assert _producers(graph, "mul") == {"_conj", "self"}
    assert _producers(graph, "neg") == {"to"}
    assert "_nested_view_from_jagged" in _producers(graph, "exp")


@pytest.mark.parametrize("transform", [lambda f: torch.vmap(f), lambda f: torch.func.grad(lambda x: f(x).sum())])
def test_edges_inside_function_transforms(transform):
    graph = _traced(transform(lambda x: (x.exp() * 2).relu() + 0.5), torch.ones(3))
    assert _producers(graph, "mul") == {"exp"}
    assert _producers(graph, "relu") == {"mul"}
    assert _producers(graph, "add") == {"relu"}


def test_sparse_tensors_are_passed_over():
    graph = _traced(lambda x: x.to_sparse().to_dense().neg(), torch.ones(2))
    assert _producers(graph, "to_dense") == set()
    assert _producers(graph, "neg") == {"to_dense"}


def test_a_tensor_made_out_of_sight_inherits_nothing_from_one_that_is_gone():
    def program():
        for _ in range(300):
            torch.ones(4).exp()  # both freed at once: their memory is reused
            with amanda.disabled():
                y = torch.zeros(4)
            y.neg()

    graph = _traced(program)
    assert _producers(graph, "neg") == {"self"}
    assert _producers(graph, "exp") == {"ones"}


@pytest.mark.parametrize("tracing_first", [False, True])
def test_what_a_tool_puts_in(tracing_first, after, before):
    tracing = GraphTracing()
    after, before = after("exp", lambda x: x + 1), before("neg", lambda x: x + 1)
    with amanda.apply(*([tracing, after, before] if tracing_first else [after, before, tracing])):
        torch.ones(2).exp().neg().abs()
    assert _producers(tracing.graph, "neg") == ({"self"} if tracing_first else {"exp", "self"})
    assert _producers(tracing.graph, "abs") == {"neg"}


# ---- dependents ------------------------------------------------------------------------------------------------------


def test_a_dependent_finds_graph_and_producers_at_analysis():
    class Dependent(amanda.Tool):
        def __init__(self, tracing):
            super().__init__()
            self.depends_on(tracing)
            self.found = {}
            self.add_inst_for_op(self.analyze)

        def analyze(self, context):
            graph, node = context["graph"], context["node"]
            assert graph is tracing.graph
            assert node is graph[context.op_id]
            assert (node.id, node.name, node.source) == (context.op_id, context.op.name, context.source)
            self.found[_name(node)] = set(map(_name, graph.producers(node)))

    tracing = GraphTracing()
    dependent = Dependent(tracing)
    with amanda.apply(dependent):
        torch.cat([torch.ones(2).relu(), torch.zeros(2)])
    assert dependent.found == {"ones": set(), "relu": {"ones"}, "zeros": set(), "cat": {"relu", "zeros"}}


# ---- exports ---------------------------------------------------------------------------------------------------------


def test_networkx_has_the_nodes_by_id_and_the_positions():
    graph = _traced(Mlp().eval(), torch.ones(1, 8))
    exported = graph.to_networkx()
    assert isinstance(exported, networkx.DiGraph)
    assert list(exported) == [node.id for node in graph]
    for node in graph:
        attributes = {key: getattr(node, key) for key in ("kind", "name", "module_path", "source")}
        assert exported.nodes[node.id] == attributes
        found = {graph[producer]: exported.edges[producer, node.id]["inputs"] for producer in exported.pred[node.id]}
        assert found == graph.producers(node)
    assert networkx.is_directed_acyclic_graph(exported)
    assert list(networkx.topological_sort(exported))


def test_json_says_the_same_with_ids_that_survive_53_bits():
    graph = _traced(Mlp().eval(), torch.ones(1, 8))
    exported = json.loads(graph.to_json())
    assert [node["id"] for node in exported["nodes"]] == [node.text_id for node in graph]
    assert [node["name"] for node in exported["nodes"]] == [node.name for node in graph]
    edges = {(edge["from"], edge["to"]): edge["inputs"] for edge in exported["edges"]}
    assert edges == {(p.text_id, node.text_id): inputs for node in graph for p, inputs in graph.producers(node).items()}
    operators = [node for node in graph if node.kind == "operator"]
    assert all(int(node.text_id, 16) == node.id and len(node.text_id) == 16 for node in operators)


def test_dot_is_text_for_graphviz():
    graph = _traced(lambda x: x.exp().neg(), torch.ones(2))
    exp, x, neg = graph
    assert graph.to_dot().splitlines() == [
        "digraph {",
        "  node [shape=box];",
        f'  "{exp.text_id}" [label="aten::exp"];',
        f'  "{exp.text_id}.0.0" [label="self", shape=ellipse];',
        f'  "{neg.text_id}" [label="aten::neg"];',
        f'  "{exp.text_id}" -> "{neg.text_id}";',
        f'  "{x.text_id}" -> "{exp.text_id}";',
        "}",
    ]
    layer = _traced(torch.nn.Sequential(torch.nn.Linear(2, 2)), torch.ones(1, 2))
    assert '[label="aten::linear\\n0"]' in layer.to_dot()


def test_without_networkx_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "networkx", None)
    with pytest.raises(ImportError, match=r"\[graph\] to_networkx needs networkx: pip install 'amanda-nn\[plot\]'"):
        GraphTracing().graph.to_networkx()


# ---- what it leaves alone, and what it holds -------------------------------------------------------------------------


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
    assert _producers(tracing.graph, "copy_") == {"select", "sum"}
    assert _producers(tracing.graph, "select") == {"self"}


def test_views_beyond_the_limit_count_as_made_by_the_last_forgotten(monkeypatch):
    monkeypatch.setattr(storages, "MAX_VIEWS", 8)
    graph = _traced(lambda x: x.clone().unbind(0)[3].neg(), torch.ones(100))
    assert _producers(graph, "neg") == {"unbind"}


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
    assert described(tracing.graph)[1] == described(_traced(model, x))[1]


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
    assert described(tracing.graph)[1] == described(_traced(model, x))[1]


# ---- the example -----------------------------------------------------------------------------------------------------


def test_the_example_finds_the_projections_that_could_be_one_product(run_example):
    printed = run_example("trace_graph.py")
    for layer in range(6):
        attention = f"encoder.layer.{layer}.attention.self"
        assert f"  {attention}.query, {attention}.key, {attention}.value\n    <- aten::" in printed
    assert printed.count("    <- aten::") == 6
    assert re.match(r"\d+ operators, \d+ parameters and other tensors from outside\n", printed)
    assert (ROOT / "build" / "encoder.dot").read_text().startswith("digraph {")


# ---- plumbing --------------------------------------------------------------------------------------------------------


def _traced(program, *inputs):
    tracing = GraphTracing()
    with amanda.apply(tracing):
        program(*inputs)
    return tracing.graph


def _name(node):
    return node.name.removeprefix("aten::")


def _node(graph, name):
    (node,) = (node for node in graph if _name(node) == name)
    return node


def _producers(graph, name):
    return set(map(_name, graph.producers(_node(graph, name))))


def test_a_graph_prints_how_much_is_in_it():
    tracing = GraphTracing()
    assert repr(tracing.graph) == "<amanda Graph: operators: 0, tensors from outside: 0, edges: 0>"
    x = torch.ones(2)
    with amanda.apply(tracing):
        torch.relu(x) + torch.sin(x)
    assert repr(tracing.graph) == "<amanda Graph: operators: 3, tensors from outside: 1, edges: 4>"
