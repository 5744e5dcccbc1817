"""Graphs are exported without our nodes and functions, in scopes and later."""

from __future__ import annotations

import functools
from typing import Any

import tensorflow as tf

from amanda.drivers.tensorflow import port
from amanda.drivers.tensorflow.lower import nodes


def patch() -> None:
    """From now on, exported graphs have neither."""
    export = port.as_graph_def.original

    @functools.wraps(export)
    def export_without_ours(self: tf.Graph, *args: Any, **kwargs: Any) -> tuple[Any, int]:
        graph_def, version = export(self, *args, **kwargs)
        if nodes.count(self):
            _remove_ours(self, graph_def)
        return graph_def, version

    port.as_graph_def.replace(export_without_ours)


def _remove_ours(graph: tf.Graph, graph_def: Any) -> None:
    theirs = [node for node in graph_def.node if not node.name.startswith(nodes.PREFIX)]
    kept = type(graph_def)()
    kept.node.extend(theirs)
    del graph_def.node[:]
    graph_def.node.extend(kept.node)
    for name in [name for name in graph_def.debug_info.traces if name.startswith(nodes.PREFIX)]:
        del graph_def.debug_info.traces[name]
    functions = {function.signature.name: function for function in graph_def.library.function}
    if any(name.startswith(nodes.FUNCTION_PREFIX) for name in functions):
        order = port.order_of_functions(graph, lambda name: not name.startswith(nodes.FUNCTION_PREFIX))
        kept.library.function.extend(functions[name] for name in order if name in functions)
        del graph_def.library.function[:]
        graph_def.library.function.extend(kept.library.function)
