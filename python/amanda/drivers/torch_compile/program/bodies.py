"""The graphs inside a graph: what higher-order operators run."""

from __future__ import annotations

import dataclasses
from typing import Any

from torch import fx

#: How the operands of a higher-order operator become the inputs of its graphs: as they are, all of them; or only the last
#: ones, those of a named argument.
_PASSED = {
    "tag_activation_checkpoint": "all",
    "wrap_activation_checkpoint": "all",
    "wrap": "all",
    "invoke_subgraph": "all",
    "wrap_with_set_grad_enabled": "all",
    "autograd_function_apply": "all",
    "cond": "all",
    "while_loop": "additional",
}


@dataclasses.dataclass(eq=False, frozen=True, slots=True)
class Body:
    """A graph that a higher-order operator runs."""

    gm: fx.GraphModule
    name: str  # in the graph around it: the target of its get_attr
    node: fx.Node  # the higher-order operator, in the graph around it
    operands: dict[fx.Node, fx.Node]  # by placeholder of `gm`: the node whose value it always is


def name_of(node: fx.Node) -> str:
    """The name of a higher-order operator."""
    return str(getattr(node.target, "_name", None) or getattr(node.target, "__name__", node.target))


def is_loop(node: fx.Node) -> bool:
    """True if the higher-order operator runs a graph more than once."""
    return name_of(node) == "while_loop"


def is_function(node: fx.Node) -> bool:
    """True if it is a `torch.autograd.Function`: of its two graphs, the second one runs in a backward pass."""
    return name_of(node) == "autograd_function_apply"


def backward_of_function(gm: fx.GraphModule, node: fx.Node) -> Body:
    """The second graph of a `torch.autograd.Function`."""
    return _body(gm, node, node.args[1], [])


def bodies_of(gm: fx.GraphModule, node: fx.Node) -> list[Body]:
    """The graphs that a higher-order operator runs."""
    passed = _PASSED.get(name_of(node))
    operands: list[Any] = []
    graphs: list[fx.Node] = []
    fx.map_arg((node.args, dict(node.kwargs)), lambda each: (graphs if _is_graph(gm, each) else operands).append(each))
    if passed == "additional":
        last = node.args[-1]
        operands = list(last) if isinstance(last, tuple | list) else []
    elif passed is None:
        operands = []
    return [_body(gm, node, graph, operands) for graph in dict.fromkeys(graphs)]


def unseen(gm: fx.GraphModule, body: Body) -> str:
    """The reason why tools are not shown the operators of a body; "" if they are shown."""
    what = name_of(body.node)
    if is_function(body.node) and body.name == body.node.args[1].target:
        return "it is in the backward of a torch.autograd.Function, of which a backward operator is made"
    if what not in _PASSED or (is_function(body.node) and not _is_known_function(gm, body)):
        return f"it is inside {what}, which runs its graphs in a way that the driver does not know"
    uses = [node for node in gm.graph.nodes if node.op == "get_attr" and node.target == body.name]
    if sum(len(node.users) for node in uses) > 1:
        return f"it is inside {what}, in a graph that several calls share"
    return ""


def _is_known_function(gm: fx.GraphModule, body: Body) -> bool:
    """True if the forward graph gets the operands, and nothing else."""
    placeholders = [each for each in body.gm.graph.nodes if each.op == "placeholder"]
    named = body.node.kwargs
    return "saved_for_backward_idx" in named and len(body.node.args) - 2 == len(placeholders)


def _is_graph(gm: fx.GraphModule, node: fx.Node) -> bool:
    return node.op == "get_attr" and isinstance(getattr(gm, str(node.target), None), fx.GraphModule)


def _body(gm: fx.GraphModule, node: fx.Node, graph: fx.Node, operands: list[Any]) -> Body:
    body = getattr(gm, str(graph.target))
    placeholders = [each for each in body.graph.nodes if each.op == "placeholder"]
    # The last operands, if there are more: cond has its predicate before them.
    count = min(len(placeholders), len(operands))
    pairs = zip(placeholders[len(placeholders) - count :], operands[len(operands) - count :], strict=True)
    return Body(body, str(graph.target), node, {p: o for p, o in pairs if isinstance(o, fx.Node)})
