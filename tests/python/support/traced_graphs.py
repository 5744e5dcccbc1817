"""Graphs that GraphTracing traced, and their nodes by name."""

import amanda
import torch
from amanda.tools.graph import GraphTracing


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


def described(graph):
    """A traced graph in the form of `Fx.describe` in test_graph_tool.py."""
    operators = [node for node in graph if node.kind == "operator"]
    edges = {
        (operators.index(p), i) for i, node in enumerate(operators) for p in graph.producers(node) if p in operators
    }
    outside = [sorted(map(operators.index, graph.consumers(node))) for node in graph if node not in operators]
    return [node.name.removeprefix("aten::") for node in operators], edges, sorted(outside)


def traced_by(program, *inputs):
    tracing = GraphTracing()
    with amanda.apply(tracing):
        program(*inputs)
    return tracing.graph


def name_of(node):
    return node.name.removeprefix("aten::")


def node_of(graph, name):
    (node,) = (node for node in graph if name_of(node) == name)
    return node


def producers_of(graph, name):
    return set(map(name_of, graph.producers(node_of(graph, name))))
