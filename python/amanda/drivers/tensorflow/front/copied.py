"""Traces of functions that tools ask for something in: the trace without tools is copied, and taps are put into the copy.

Nothing is traced again, which takes longer than the copy. Tools are shown the operators of the trace itself, with their
lines, layers and gradients.
"""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import tensorflow as tf

from amanda import _core
from amanda.drivers.tensorflow import port
from amanda.drivers.tensorflow.front import running, unasked, unsupported
from amanda.drivers.tensorflow.lower import in_place, nodes, tap_nodes
from amanda.drivers.tensorflow.view import attach, bodies, called, coverage, graph_site, links, op_types

_CALLS = {"PartitionedCall", "StatefulPartitionedCall"}
_ORIGINAL = "_amanda_original"  # the attribute of a concrete function that is a copy: the other must live as long
_numbers = itertools.count(1)  # in names of functions, which are those of the process


class _Body(NamedTuple):
    """The graph of a function, and the names of its operators in the function's definition."""

    function: Any  # the AtomicFunction
    graph: Any
    definition: Any
    names: dict[tf.Operation, str]


def copy(function: Any, toolset: _core.Toolset, attributes: Any) -> Any:
    """A concrete function like this one, with the taps of the tools; itself if there are none. None if it cannot be
    copied: then it is traced."""
    found: dict[str, _Body] = {}
    if not tf.executing_eagerly() or port.takes_later_values(function) or _returns_arrays(function):
        return None
    if not _find(port.inference_function(function), found):
        return None
    *inner, outer = found.values()
    copies = _Copies(toolset)
    for body in inner:
        copies.add(body)
    graph = copies.graph_of(outer, function)
    made = function if graph is None else port.function_like(function, graph, attributes)
    if made is not function:
        setattr(made, _ORIGINAL, function)
    unasked.note_shared(made)
    return made


def _returns_arrays(function: Any) -> bool:
    results = tf.nest.flatten(function.graph.structured_outputs, expand_composites=True)
    return any(isinstance(result, tf.TensorArray) for result in results)


def _find(function: Any, found: dict[str, _Body]) -> bool:
    """Finds the graphs of a function and of those that it calls, which come before it. False if one of them cannot be
    copied."""
    graph, definition = port.graph_of(function), function.cached_definition
    if graph is None or unsupported.is_distributed(graph) or port.is_compiled_by_xla(definition):
        return False
    operators = called.nodes_of(graph, definition)
    if operators is None or any(unasked.is_vectorized(op) or op.type in op_types.FRAMES for op in operators.values()):
        return False
    if any(gradient.graph is not graph for gradient in links.forward_operators(graph)):
        return False  # of a function that another one differentiates
    for node in definition.node_def if function.children else ():
        for name in port.names_in(node):
            inner = port.find_function(graph, name)
            if node.op not in _CALLS or inner is None:
                return False
            if name not in found and not _find(inner, found):
                return False
    found[definition.signature.name] = _Body(function, graph, definition, {op: name for name, op in operators.items()})
    return True


class _Copies:
    """The graphs that run instead. A graph is copied if it has taps, or calls a function that has."""

    def __init__(self, toolset: _core.Toolset) -> None:
        self._toolset = toolset
        self._functions: dict[str, Any] = {}  # copies, by the name of the function

    def add(self, body: _Body) -> None:
        """Copies a function that others call, if it must be copied."""
        graph = self.graph_of(body)
        if graph is not None:
            name = f"{nodes.FUNCTION_PREFIX}copy{next(_numbers)}_{body.graph.name}"
            made = port.make_function(name, graph, body.definition.attr)
            running.mark(made)
            self._functions[body.definition.signature.name] = made

    def graph_of(self, body: _Body, function: Any = None) -> Any:
        """The copy of a graph, None if it is not needed. `function`: the concrete function, if it is not one that others
        call."""
        site = graph_site.GraphSite(
            attach.FUNCTION,
            in_place.running(body.graph),
            lambda plans: self._lower(body, function, site, plans),
            position=bodies.position_of(body.graph),
            wants=None if coverage.is_open() else attach.FUNCTION.wants,
        )
        artifact = _core.instrument(self._toolset, attach.FUNCTION, site)
        if artifact.lowered is not None:
            graph, _ = artifact.lowered
        elif any(name in self._functions for node in body.definition.node_def for name in port.names_in(node)):
            graph = self._copy(body, function)
        else:
            return None
        running.note(graph, running.Instrumented(self._toolset, site.shown, artifact, body.function))
        return graph

    def _copy(self, body: _Body, function: Any) -> Any:
        names = {name: port.name_of_function(made) for name, made in self._functions.items()}
        changed = []
        definition = type(body.definition)()
        definition.CopyFrom(body.definition)
        for node in definition.node_def if names else ():
            if port.rename_functions(node, names):  # then it has effects, those of taps
                node.op = "StatefulPartitionedCall"
                changed.append(node.name)
        graph = port.graph_like(body.graph, definition, self._functions.values())
        if function is not None:
            port.connect_like(function, graph)
        kept = {*graph.control_outputs}
        graph.control_outputs.extend(
            op for op in (graph.get_operation_by_name(name) for name in changed) if op not in kept
        )
        return graph

    def _lower(
        self, body: _Body, function: Any, site: graph_site.GraphSite, plans: graph_site.Plans
    ) -> tuple[Any, tap_nodes.TapNodes]:
        graph = self._copy(body, function)
        copies = {op: graph.get_operation_by_name(name) for op, name in body.names.items()}
        for shown, _ in plans:  # the shapes of variables are no part of a definition
            op, one = shown.op, copies[shown.op]
            for old, new in zip((*op.inputs, *op.outputs), (*one.inputs, *one.outputs), strict=True):
                new.set_shape(old.shape)
        gradients = {
            copies[op]: links.Gradient(copies.get(gradient.forward, gradient.forward), (), ())
            for op, gradient in site.gradients.items()
            if op in copies
        }
        inserted = in_place.InPlace(graph, gradients).insert(
            [(tap_nodes.copied(attach.FUNCTION, shown, copies), taps) for shown, taps in plans]
        )
        return graph, inserted
