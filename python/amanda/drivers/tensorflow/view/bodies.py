"""The graphs of loops and conditionals: their names, and what TensorFlow adds to them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from amanda.drivers.tensorflow import port

_POSITION = "_amanda_position"  # the attribute of a graph that a v1 graph calls


class Position(NamedTuple):
    """The position of a graph in the program, for ids and module paths of its operators."""

    function: str
    path: str


def position(graph: Any) -> Position | None:
    """The position that a graph was given because a v1 graph calls it."""
    return getattr(graph, _POSITION, None)


def set_position(graph: Any, where: Position) -> None:
    setattr(graph, _POSITION, where)


def position_of(graph: Any) -> Position:
    """The position of any graph."""
    return position(graph) or Position(label_of(graph) if port.is_function(graph) else "", "")


def label_of(graph: Any) -> str:
    """The function that a graph belongs to, and which part of it this is: without TensorFlow's running numbers."""
    if graph.name == port.CONTROL_FLOW_WRAPPER:
        return label_of(graph.outer_graph) if port.is_function(graph.outer_graph) else ""
    if port.is_body(graph):
        outer = label_of(graph.outer_graph) if port.is_function(graph.outer_graph) else ""
        root = outer.partition("/")[0]
        return f"{root}/{_unnumbered(graph.name)}"
    if graph.name.startswith("__backward_"):
        return _unnumbered(graph.name)
    return str(graph.name)


def _unnumbered(name: str) -> str:
    return re.sub(r"_rewritten|_\d+(?=_|$)", "", name)


def without_counters(graph: Any, operators: Sequence[tf.Operation]) -> list[tf.Operation]:
    """TensorFlow's loops count their iterations, in the first of their values, which the program never sees."""
    if not port.is_loop(graph):
        return list(operators)
    counts: set[tf.Operation] = {*graph.inputs[0].consumers()}
    # tf.while_loop(maximum_iterations=...)
    counts.update(
        op for op in operators if op.type == "LogicalAnd" and any(operand.op in counts for operand in op.inputs)
    )
    return [op for op in operators if op not in counts]
