"""Graphs are exported without our nodes, in scopes and later."""

from __future__ import annotations

import functools
from typing import Any

import tensorflow as tf

from amanda.drivers.tensorflow import port
from amanda.drivers.tensorflow.lower import nodes


def patch() -> None:
    """From now on, exported graphs do not have our nodes."""
    export = port.as_graph_def.original

    @functools.wraps(export)
    def export_without_ours(self: tf.Graph, *args: Any, **kwargs: Any) -> tuple[Any, int]:
        graph_def, version = export(self, *args, **kwargs)
        if nodes.count(self):
            _remove_ours(graph_def)
        return graph_def, version

    port.as_graph_def.replace(export_without_ours)


def _remove_ours(graph_def: Any) -> None:
    theirs = [node for node in graph_def.node if not node.name.startswith(nodes.PREFIX)]
    kept = type(graph_def)()
    kept.node.extend(theirs)
    del graph_def.node[:]
    graph_def.node.extend(kept.node)
    for name in [name for name in graph_def.debug_info.traces if name.startswith(nodes.PREFIX)]:
        del graph_def.debug_info.traces[name]
