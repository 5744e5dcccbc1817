"""Pieces of a graph, whose inputs are values of the reference."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from .reference import Reference, is_plain, tensors_in


class NoPieceError(Exception):
    """These nodes cannot be a graph of their own. The text is the reason."""


@dataclasses.dataclass(frozen=True)
class Piece:
    """A graph of some nodes of another graph.

    Attributes:
        nodes: those of the other graph.
        inputs: the values of the reference that it reads.
        names: of the nodes of the other graph that have these values.
        outputs: the nodes of the other graph that are its results.
    """

    nodes: tuple[fx.Node, ...]
    inputs: list[torch.Tensor]
    names: list[str]
    outputs: list[fx.Node]
    _make: Callable[[], fx.GraphModule]

    def graph(self) -> fx.GraphModule:
        """A new graph at each call: a backend may change it."""
        return self._make()


def piece_of(reference: Reference, units: Sequence[int]) -> Piece:
    """The piece with these units. Raises `NoPieceError`."""
    chosen = {node for unit in units for node in reference.units[unit]}
    nodes = tuple(node for node in reference.graph.graph.nodes if node in chosen or reference.is_state(node))
    read = [node for node in _read_outside(nodes, reference) if _is_tensor(reference, node)]
    outputs = [node for node in nodes if node in chosen and _is_result(node, chosen, reference)]
    inputs = [_input(reference.values[node]) for node in read]

    def make() -> fx.GraphModule:
        return _made(reference, nodes, read, outputs)

    return Piece(tuple(node for node in nodes if node in chosen), inputs, [node.name for node in read], outputs, make)


def _read_outside(nodes: Sequence[fx.Node], reference: Reference) -> list[fx.Node]:
    inside = set(nodes)
    read = dict.fromkeys(
        one for node in nodes for one in node.all_input_nodes if one not in inside and one.op != "get_attr"
    )
    for node in read:
        value = reference.values[node]
        if not isinstance(value, torch.Tensor) and not is_plain(value):
            raise NoPieceError(f"{node.name} is a {type(value).__name__}, which cannot be the input of a graph")
    return list(read)


def _is_tensor(reference: Reference, node: fx.Node) -> bool:
    return isinstance(reference.values[node], torch.Tensor)


def _is_result(node: fx.Node, chosen: set[fx.Node], reference: Reference) -> bool:
    """True if others read it, or if nothing does; and it is a tensor, or several."""
    if not any(True for _ in tensors_in(reference.values[node])):
        return False
    return not node.users or any(user not in chosen for user in node.users)


def _input(value: torch.Tensor) -> torch.Tensor:
    return value if value.is_leaf else value.detach().requires_grad_(value.requires_grad)


def _made(
    reference: Reference, nodes: Sequence[fx.Node], read: Sequence[fx.Node], outputs: Sequence[fx.Node]
) -> fx.GraphModule:
    graph = fx.Graph()
    copies: dict[fx.Node, Any] = {node: graph.placeholder(node.name) for node in read}

    def operand(node: fx.Node) -> Any:
        if node not in copies and node.op == "get_attr":
            copies[node] = graph.node_copy(node)
        return copies[node] if node in copies else reference.values[node]

    for node in nodes:
        args = fx.map_arg(node.args, operand)
        kwargs = fx.map_arg(node.kwargs, operand)
        copies[node] = graph.create_node(node.op, node.target, args, kwargs, node.name)
        copies[node].meta = {name: node.meta[name] for name in _KEPT if name in node.meta}
    graph.output(tuple(copies[node] for node in outputs))
    graph.lint()
    return fx.GraphModule(reference.graph, graph)


_KEPT = ("stack_trace", "nn_module_stack", "source_fn_stack")
