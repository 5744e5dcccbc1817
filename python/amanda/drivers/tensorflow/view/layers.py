"""The names of Keras layers in the name scopes of a graph.

A graph makes each scope unique: the scope of the layer "dense" may be "functional_1/dense_2". So Keras' class for scopes
notes which one it opens for which name, from the time Keras is imported, because a function may be traced once.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from typing import Any

import tensorflow as tf

from amanda.drivers.tensorflow import port

_names: weakref.WeakKeyDictionary[Any, dict[str, str]] = weakref.WeakKeyDictionary()  # by graph and scope
_patched: set[Any] = set()  # Keras' class


def watch() -> None:
    """Keras need not be imported, and another version may lack the class: then scopes have the names of the graph."""
    scope = port.keras_name_scope()
    enter = getattr(scope, "__enter__", None)
    if scope is None or enter is None or scope in _patched:
        return

    @functools.wraps(enter)
    def enter_and_note(self: Any) -> Any:
        result = enter(self)
        if not tf.executing_eagerly():
            with contextlib.suppress(Exception):  # Keras has entered; our note must not end the program
                _note(self)
        return result

    _patched.add(scope)
    scope.__enter__ = enter_and_note


def _note(scope: Any) -> None:
    graph = tf.compat.v1.get_default_graph()
    entered, name = graph.get_name_scope(), scope.name
    last = entered.rpartition("/")[2]
    if last != name and last.startswith(f"{name}_"):
        _names.setdefault(graph, {})[entered] = name


def module_path(graph: Any, scope: str) -> str:
    """The path of a scope of a graph: "functional.dense"."""
    known = _names.get(graph)
    if known is None:
        return scope.replace("/", ".")
    parts = scope.split("/")
    return ".".join(known.get("/".join(parts[: i + 1]), part) for i, part in enumerate(parts))
