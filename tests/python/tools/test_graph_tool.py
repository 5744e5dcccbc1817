"""GraphTracing: its edges against torch.fx's, over iterations, for dependents and in exports."""

import json
import re
import sys

import amanda
import networkx
import pytest
import torch
import torch.nn.functional as F
from amanda.tools.graph import GraphTracing
from repository import ROOT
from traced_graphs import Mlp, described, name_of, traced_by


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


MODELS = [(Mlp, (4, 8)), (Cnn, (2, 3, 6, 6)), (Attention, (3, 5, 8))]


@pytest.mark.parametrize(("model", "shape"), MODELS)
def test_the_edges_are_those_of_torch_fx(model, shape, recorder):
    model, x = model().eval(), torch.randn(shape)
    names, edges, outside = described(traced_by(model, x))
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
            self.found[name_of(node)] = set(map(name_of, graph.producers(node)))

    tracing = GraphTracing()
    dependent = Dependent(tracing)
    with amanda.apply(dependent):
        torch.cat([torch.ones(2).relu(), torch.zeros(2)])
    assert dependent.found == {"ones": set(), "relu": {"ones"}, "zeros": set(), "cat": {"relu", "zeros"}}


# ---- exports ---------------------------------------------------------------------------------------------------------


def test_networkx_has_the_nodes_by_id_and_the_positions():
    graph = traced_by(Mlp().eval(), torch.ones(1, 8))
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
    graph = traced_by(Mlp().eval(), torch.ones(1, 8))
    exported = json.loads(graph.to_json())
    assert [node["id"] for node in exported["nodes"]] == [node.text_id for node in graph]
    assert [node["name"] for node in exported["nodes"]] == [node.name for node in graph]
    edges = {(edge["from"], edge["to"]): edge["inputs"] for edge in exported["edges"]}
    assert edges == {(p.text_id, node.text_id): inputs for node in graph for p, inputs in graph.producers(node).items()}
    operators = [node for node in graph if node.kind == "operator"]
    assert all(int(node.text_id, 16) == node.id and len(node.text_id) == 16 for node in operators)


def test_dot_is_text_for_graphviz():
    graph = traced_by(lambda x: x.exp().neg(), torch.ones(2))
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
    layer = traced_by(torch.nn.Sequential(torch.nn.Linear(2, 2)), torch.ones(1, 2))
    assert '[label="aten::linear\\n0"]' in layer.to_dot()


def test_without_networkx_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "networkx", None)
    with pytest.raises(ImportError, match=r"\[graph\] to_networkx needs networkx: pip install 'amanda-nn\[plot\]'"):
        GraphTracing().graph.to_networkx()


# ---- the example -----------------------------------------------------------------------------------------------------


def test_the_example_finds_the_projections_that_could_be_one_product(run_example):
    printed = run_example("trace_graph.py")
    for layer in range(6):
        attention = f"encoder.layer.{layer}.attention.self"
        assert f"  {attention}.query, {attention}.key, {attention}.value\n    <- aten::" in printed
    assert printed.count("    <- aten::") == 6
    assert re.match(r"\d+ operators, \d+ parameters and other tensors from outside\n", printed)
    assert (ROOT / "build" / "encoder.dot").read_text().startswith("digraph {")


# ---- how it prints ---------------------------------------------------------------------------------------------------


def test_a_graph_prints_how_much_is_in_it():
    tracing = GraphTracing()
    assert repr(tracing.graph) == "<amanda Graph: operators: 0, tensors from outside: 0, edges: 0>"
    x = torch.ones(2)
    with amanda.apply(tracing):
        torch.relu(x) + torch.sin(x)
    assert repr(tracing.graph) == "<amanda Graph: operators: 3, tensors from outside: 1, edges: 4>"
