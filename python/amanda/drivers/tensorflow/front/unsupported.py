"""The calls of TensorFlow that tools do not see: they run as without a scope, after one warning."""

from __future__ import annotations

import functools
from typing import Any

import tensorflow as tf

from amanda.core import switches
from amanda.core.unshown import Unshown
from amanda.drivers.tensorflow import port

_unshown = Unshown("tensorflow", "TensorFlow")
warn, remarks = _unshown.warn, _unshown.remarks
_DISTRIBUTED = "_amanda_is_distributed"  # the attribute of a function's graph in which a strategy runs


def patch() -> None:
    port.run_replicas.replace(_run_replicas)


def unpatch() -> None:
    port.run_replicas.restore()


def warn_of_strategy(strategy: Any) -> None:
    warn(f"{type(strategy).__name__} runs without tools; run the model without a distribution strategy")


def is_distributed(graph: Any) -> bool:
    """True if a strategy runs in this function's graph."""
    return getattr(graph, _DISTRIBUTED, False)


@functools.wraps(port.run_replicas.original)
def _run_replicas(strategy: Any, *args: Any, **kwargs: Any) -> Any:
    """With the default strategy, it is a call of the function."""
    if port.is_default_strategy(strategy) or not switches.is_enabled():
        return port.run_replicas.original(strategy, *args, **kwargs)
    warn_of_strategy(strategy)
    graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    while isinstance(graph, port.FuncGraph):
        setattr(graph, _DISTRIBUTED, True)
        graph = graph.outer_graph
    with switches.disabled():
        return port.run_replicas.original(strategy, *args, **kwargs)
