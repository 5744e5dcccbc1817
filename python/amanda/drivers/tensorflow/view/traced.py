"""Graphs that become more: of functions that are traced again, and of a session."""

from __future__ import annotations

import collections
import gc
import sys
from typing import Any, NamedTuple

import tensorflow as tf

from amanda.driver.identity import frames
from amanda.drivers.tensorflow import port
from amanda.drivers.tensorflow.lower import nodes
from amanda.drivers.tensorflow.view import bodies, places


class Traced(NamedTuple):
    """A function that is traced again and again."""

    why: str  # "made": it is a new function each time; "variables": and has others; "shapes": of tensors; "values": others
    source: str  # of its first line; empty if it is not known


def traces() -> collections.Counter[str]:
    """The graphs of functions that exist, by the function's name; without those of loops and conditionals in them."""
    return collections.Counter(bodies.label_of(one) for one in _graphs())


def why_traced(name: str) -> Traced:
    """The reason why a function has several graphs."""
    functions = [one for one in gc.get_objects() if isinstance(one, port.Function) and str(one.name) == name]
    graphs = [one for one in _graphs() if bodies.label_of(one) == name]
    code = getattr(getattr(functions[-1], "python_function", None), "__code__", None) if functions else None
    source = "" if code is None else frames.encodable(f"{code.co_filename}:{code.co_firstlineno}")
    signatures = [tf.nest.flatten(getattr(one, "structured_input_signature", None)) for one in graphs[-2:]]
    if all(one == signatures[0] for one in signatures):
        captured = [{id(one) for one, _ in each.captures if one.dtype == tf.resource} for each in graphs[-2:]]
        has_own = len(captured) == 2 and all(captured) and captured[0].isdisjoint(captured[1])
        return Traced("variables" if has_own else "made", source)
    are_shapes = len({len(each) for each in signatures}) == 1 and all(map(_differ_in_shape, *signatures))
    return Traced("shapes" if are_shapes else "values", source)


def lines_of(symbol: Any) -> list[tuple[str, int, str]]:
    """The file, line and function of each frame of the program in which a function was traced that a symbol is in: from the
    function on, and not those that called it. Empty outside of functions."""
    if not isinstance(symbol, tf.Tensor) or port.is_eager(symbol) or not port.is_function(symbol.graph):
        return []
    calls = [*(symbol.op.traceback or ())]
    file = sys.modules[port.FuncGraph.__module__].__file__
    begin = next((at for at, frame in enumerate(calls) if frame.filename == file), len(calls))
    inside = (frame for frame in calls[begin:] if not places.is_library(frame.filename))
    return [(frame.filename, frame.lineno, frame.name) for frame in inside]


def function_of(symbol: Any) -> str:
    """The name of the function whose graph a symbol is in, as in `traces`."""
    return bodies.label_of(symbol.graph).partition("/")[0] if port.is_function(symbol.graph) else ""


def function_graphs() -> list[tuple[str, Any]]:
    """Those that exist, each with the function's name; without loops and conditionals in them."""
    return [(bodies.label_of(one), one) for one in _graphs()]


def written() -> collections.Counter[str]:
    """The operators of graphs that sessions run, by the line that made them. One that was imported has none."""
    found: collections.Counter[str] = collections.Counter()
    for graph in gc.get_objects():
        if type(graph) is tf.Graph:
            theirs = (op for op in graph.get_operations() if not op.name.startswith(nodes.PREFIX))
            found.update(filter(None, map(places.source_of, theirs)))
    return found


def _graphs() -> list[Any]:
    return [one for one in gc.get_objects() if isinstance(one, port.FuncGraph) and not port.is_body(one)]


def _differ_in_shape(one: Any, other: Any) -> bool:
    """Or not at all."""
    if isinstance(one, tf.TensorSpec) and isinstance(other, tf.TensorSpec):
        return bool(one.dtype == other.dtype)
    return bool(one == other)
