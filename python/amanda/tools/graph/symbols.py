"""Symbols: the edges of programs that are graphs themselves. The framework knows which operator makes a symbol."""

from __future__ import annotations

import collections
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from amanda import Action, OpContext
from amanda.toolkit import Skips, locks
from amanda.toolkit.operators import Origin, origins_of

from .graph import Graph, Node, NodeId


class _Operand(NamedTuple):
    """A symbol that an operator consumes."""

    origins: Sequence[Origin]  # several: it is one of them
    position: int
    slot: str
    name: str


class Edges:
    """Asks for origins in analyses, and adds edges when both ends have run."""

    def __init__(self, graph: Graph, skips: Skips) -> None:
        self._graph, self._skips = graph, skips
        self._lock = locks.lock()  # guards what follows
        self._outside: dict[Any, Node] = {}
        self._waiting: dict[NodeId, dict[tuple[Node, int], None]] = collections.defaultdict(
            dict
        )  # by the producer's id

    def reset(self) -> None:
        with self._lock:
            self._outside.clear()
            self._waiting.clear()

    def trace(self, context: OpContext, node: Node, once: bool) -> None:
        names = context.op.input_names
        operands = [
            _Operand(self._origins(context, symbol), position, f"{position}.{member}", names[position])
            for position, value in enumerate(context.inputs)
            for member, symbol in enumerate(value if isinstance(value, (list, tuple)) else [value])
            if symbol is not None
        ]
        done: list[Action] = []
        action = context.insert_before_op(self._run, inputs=[], node=node, operands=operands, done=done)
        if once:
            done.append(action)

    def _origins(self, context: OpContext, symbol: object) -> Sequence[Origin]:
        origins = origins_of(symbol)
        if origins is None:
            self._skips.add("untraced", context.namespace)
        return origins or ()

    def _run(self, node: Node, operands: list[_Operand], done: list[Action]) -> None:
        with self._lock:
            node = self._graph._add(node)
            for operand in operands:
                for origin in operand.origins:
                    self._connect(origin, node, operand)
            # Routines of operators that run at the same time come in any order.
            for consumer, position in self._waiting.pop(node.id, ()):
                self._graph._connect(node, consumer, position)
        for action in done:
            action.remove()

    def _connect(self, origin: Origin, node: Node, operand: _Operand) -> None:
        if origin.op_id is None:
            self._graph._connect(self._outside_node(origin, node, operand), node, operand.position)
        elif origin.op_id in self._graph:
            self._graph._connect(self._graph[origin.op_id], node, operand.position)
        else:  # it never runs if it is in the other branch
            self._waiting[origin.op_id][node, operand.position] = None

    def _outside_node(self, origin: Origin, consumer: Node, operand: _Operand) -> Node:
        known = self._outside.get(origin.key)
        if known is None:
            kind: Literal["input", "parameter"] = "parameter" if origin.is_parameter else "input"
            text_id = f"{consumer.text_id}.{operand.slot}"
            made = Node(text_id, kind, operand.name, consumer.module_path, consumer.source)
            known = self._outside[origin.key] = self._graph._add(made)
        return known
