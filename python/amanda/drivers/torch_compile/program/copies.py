"""Copies of Dynamo's graphs: a backend may change what it is given, and Dynamo reads its own again, for guards."""

from __future__ import annotations

from typing import Any

from torch import fx


def copy_of(gm: fx.GraphModule) -> fx.GraphModule:
    """Node by node, with what Dynamo has noted of each, and of the graph; also of the graphs inside."""
    graph = fx.Graph()
    copied: dict[fx.Node, fx.Node] = {}
    for node in gm.graph.nodes:
        copied[node] = graph.node_copy(node, lambda operand: copied[operand])
        if hasattr(node, "_dynamo_source"):
            copied[node]._dynamo_source = node._dynamo_source
    copy: Any = fx.GraphModule(gm, graph)
    for name, value in vars(gm).items():
        vars(copy).setdefault(name, value)
    copy.meta = dict(gm.meta)
    for name, part in gm.named_children():
        if isinstance(part, fx.GraphModule):
            setattr(copy, name, copy_of(part))
    return copy
