"""Nodes that we add to a graph of the program."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from amanda.drivers.tensorflow import port

#: The names of our nodes begin with it.
PREFIX = "amanda/"
#: The names of our functions begin with it.
FUNCTION_PREFIX = "__amanda_"

_ATTRIBUTE = "_amanda_nodes"


class Nodes:
    """Creates our nodes in one graph, which holds it."""

    def __init__(self, graph: tf.Graph) -> None:
        self.count = 0
        self.cones = 0  # how often a part of the graph was built again, for a session
        self.lock = threading.RLock()  # of those who change the graph

    def create(
        self,
        graph: tf.Graph,
        node_def: Any,
        inputs: Sequence[tf.Tensor],
        control_inputs: Sequence[tf.Operation],
        original: tf.Operation,
    ) -> tf.Operation:
        """A node for, or in place of, the operator `original`. It is in no scope of the program's, and has the device
        that `node_def` names."""
        self.count += 1
        node_def.name = f"{PREFIX}{self.count}/{original.name}"
        return port.create_node(graph, node_def, list(inputs), list(control_inputs), original)


def of(graph: tf.Graph) -> Nodes:
    known: Nodes | None = getattr(graph, _ATTRIBUTE, None)
    if known is None:
        known = Nodes(graph)
        setattr(graph, _ATTRIBUTE, known)
    return known


def count(graph: tf.Graph) -> int:
    """The number of our nodes in the graph."""
    known: Nodes | None = getattr(graph, _ATTRIBUTE, None)
    return known.count if known else 0
