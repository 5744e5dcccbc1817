"""A graph of Dynamo's as a program of operators."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import fx

from amanda.drivers.torch_compile.calls import Call


@dataclasses.dataclass(eq=False, frozen=True, slots=True)
class Body:
    """A graph that a higher-order operator runs."""

    gm: fx.GraphModule
    node: fx.Node  # the higher-order operator, in the graph around it
    operands: tuple[Any, ...]  # of `node`, for each placeholder of `gm`; None: it is no operand as it is


class Program:
    """`calls`: the operators in the order in which they run, those of bodies where the body is run. `unseen`: what tools
    are not shown, and why. `bodies`: the graphs inside, outer ones first."""

    def __init__(self, gm: fx.GraphModule, example_inputs: Sequence[Any]) -> None:
        self.gm, self.example_inputs = gm, list(example_inputs)
        self.calls: list[Call] = []
        self.unseen: list[tuple[str, str]] = []
        self.bodies: list[Body] = []
        self.fake_mode: Any = None

    def calls_of(self, node: fx.Node) -> list[Call]:
        """The calls that a node makes."""
        return [call for call in self.calls if call.node is node]

    def as_nodes(
        self,
        graph: fx.Graph,
        node: fx.Node,
        copies: Mapping[fx.Node, Any],
        emit: Callable[[Call, tuple[Any, ...]], Sequence[Any]],
    ) -> Any:
        """Adds the calls that a node makes, instead of the node, to a copy of its graph, and returns what stands for the
        node's value there.

        Arguments: graph: the copy, whose nodes are added at its insert point. copies: what stands for the value of each
            node of Dynamo's graph. emit: adds a call, given what stands for its arguments, by schema position, and
            returns what stands for its results, by schema position; `emit_call` is the plain one.
        """
        raise NotImplementedError

    def emit_call(self, graph: fx.Graph, call: Call, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Adds the call itself; see as_nodes()."""
        raise NotImplementedError
