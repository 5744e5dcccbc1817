"""The functions that a v1 graph calls: the graphs that they were made of, which are shown to tools."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from amanda.drivers.tensorflow import port
from amanda.drivers.tensorflow.lower import in_place
from amanda.drivers.tensorflow.view import bodies, links, op_types

_IMPORTED = "_amanda_imported"  # of a v1 graph: the graphs of functions that it knows the definitions of only, by name
_POSITIONS = "_amanda_positions"  # of a v1 graph: of functions, by name


class Function(NamedTuple):
    """A function that was made of a graph. The graph may have got more operators since then."""

    name: str
    definition: Any  # a FunctionDef
    graph: Any
    nodes: dict[tf.Operation, str]  # the operators that run, and their names in the definition
    results: list[tf.Tensor]


class Body:
    """A graph, and the functions that were made of it."""

    def __init__(self, graph: Any) -> None:
        self.graph = graph
        self.functions: list[Function] = []

    @functools.cached_property
    def operators(self) -> list[tf.Operation]:
        """Those that run; all functions must be there by then."""
        running = {op for function in self.functions for op in function.nodes}
        found = [op for op in in_place.running(self.graph, list(running)) if op in running]
        return bodies.without_counters(self.graph, found)


class CalledFunctions:
    """The functions that operators of a v1 graph call, directly or not."""

    def __init__(self, graph: tf.Graph, operators: Sequence[tf.Operation]) -> None:
        self._graph = graph
        self._known: dict[str, Any] = {}  # definitions
        self._states: dict[str, str | None] = {}
        self._found: dict[str, Function | None] = {}
        self._reasons: dict[str, str] = {}
        self._bodies: list[Body] | None = None
        calls = [op for op in operators if op.type in op_types.CALLS]
        self._positions = _positions(graph) if calls else {}
        for op in calls:
            for name in port.function_names(op):
                self._find(name)

    @property
    def functions(self) -> list[Function]:
        """Those that can be instrumented. A function comes after those that it calls."""
        return [function for function in self._found.values() if function is not None]

    def find(self, name: str) -> Function | None:
        """The function of this name, if it can be instrumented."""
        return self._found.get(name)

    def bodies(self) -> list[Body]:
        """Their graphs. One with gradients of another comes after that."""
        if self._bodies is None:
            self._bodies = self._in_order()
        return self._bodies

    def _in_order(self) -> list[Body]:
        found: dict[Any, Body] = {}
        for function in self.functions:
            found.setdefault(function.graph, Body(function.graph)).functions.append(function)
        order: list[Body] = []
        begun: set[Any] = set()

        def add(body: Body) -> None:
            if body.graph in begun:
                return
            begun.add(body.graph)
            for op in body.operators:
                gradient = links.gradient_of(op)
                forward = found.get(gradient.forward.graph) if gradient else None
                if forward is not None:
                    add(forward)
            order.append(body)

        for body in found.values():
            add(body)
        return order

    def reason(self, op: tf.Operation) -> str | None:
        """Why a function that the operator calls is not instrumented; None if all are."""
        if op.type == "SymbolicGradient":
            return "TensorFlow differentiates them when they run"
        return next((self._reasons[name] for name in port.function_names(op) if name in self._reasons), None)

    def definitions(self, op: tf.Operation) -> Iterator[Any]:
        """The definitions of the functions that it calls and that are not instrumented."""
        for name in port.function_names(op):
            if name in self._reasons or op.type == "SymbolicGradient":
                yield from self._definitions(name, set())

    def keeps_state(self, op: tf.Operation) -> bool:
        """True if a copy of this operator, a call, has not the state of the original."""
        return op.type in op_types.CALLS and any(map(self._state, port.function_names(op)))

    def forbid(self, names: Iterable[str], reason: str) -> None:
        """Leaves functions out, and those that they call."""
        for name in names:
            function = self._found.get(name)
            if function is not None:
                self._found[name] = self._bodies = None
                self._reasons[name] = reason
                for node in function.definition.node_def:
                    self.forbid(port.names_in(node), reason)

    def _find(self, name: str) -> None:
        if name in self._found:
            return
        self._found[name] = None
        found = self._function(name)
        if isinstance(found, str):
            self._reasons[name] = found
            return
        for op in found.nodes:
            if op.type in op_types.CALLS and op.type != "SymbolicGradient":
                for inner in port.function_names(op):
                    self._find(inner)
        self._found.pop(name)  # after those that it calls
        self._found[name] = found

    def _function(self, name: str) -> Function | str:
        definition = self._definition(name)
        if definition is None:
            return "their definitions are not in the graph"
        if port.is_compiled_by_xla(definition):
            return "XLA compiles them; use jit_compile=False"
        state = self._state(name)
        if state is not None:
            return state
        graph = port.graph_of(port.find_function(self._graph, name))
        if graph is None:
            graph = self._imported(name, definition)
            nodes: dict[str, tf.Operation] | None = {
                node.name: graph.get_operation_by_name(node.name) for node in definition.node_def
            }
        else:
            nodes = nodes_of(graph, definition)
        if nodes is None:
            return "TensorFlow has changed the graphs that they were made of"
        results = [_result(graph, nodes, definition, output.name) for output in definition.signature.output_arg]
        effects = [nodes[node] for node in definition.control_ret.values() if node in nodes]
        names = {op: node for node, op in nodes.items()}
        running = in_place.running(graph, [*(tensor.op for tensor in results), *effects])
        return Function(name, definition, graph, {op: names[op] for op in running if op in names}, results)

    def _definition(self, name: str) -> Any:
        if name not in self._known:
            self._known[name] = port.definition_of_function(self._graph, name)
        return self._known[name]

    def _definitions(self, name: str, seen: set[str]) -> Iterator[Any]:
        """Those of a function and of the functions that it calls."""
        definition = self._definition(name)
        if definition is not None and name not in seen:
            seen.add(name)
            yield definition
            for node in definition.node_def:
                for inner in port.names_in(node):
                    yield from self._definitions(inner, seen)

    def _state(self, name: str) -> str | None:
        """Why a copy of a function would have a state of its own; None if it would not."""
        if name not in self._states:
            nodes = (node for definition in self._definitions(name, set()) for node in definition.node_def)
            self._states[name] = next(filter(None, map(_state_of, nodes)), None)
        return self._states[name]

    def _imported(self, name: str, definition: Any) -> Any:
        known: dict[str, Any] | None = getattr(self._graph, _IMPORTED, None)
        if known is None:
            known = {}
            setattr(self._graph, _IMPORTED, known)
        if name not in known:
            known[name] = port.graph_of_definition(self._graph, definition)
            if name in self._positions:
                bodies.set_position(known[name], self._positions[name])
        return known[name]


def nodes_of(graph: Any, definition: Any) -> dict[str, tf.Operation] | None:
    """The operators of a graph by their names in the function that was made of it, which has them in their order.
    TensorFlow adds a number to a name if a result of the function has it. None if these are others."""
    inputs = {tensor.op for tensor in graph.inputs}
    operators = [op for op in graph.get_operations() if op not in inputs]
    found = {}
    for node, op in zip(definition.node_def, operators, strict=False):
        name = op.name
        if node.op != op.type or (node.name != name and not re.fullmatch(re.escape(name) + r"(_\d+)?", node.name)):
            return None
        found[node.name] = op
    return found if len(found) == len(definition.node_def) else None


def _result(graph: Any, nodes: dict[str, tf.Operation], definition: Any, name: str) -> tf.Tensor:
    """A result of a function, in its graph."""
    node, _, output = definition.ret[name].partition(":")
    if node not in nodes:
        return graph.inputs[[argument.name for argument in definition.signature.input_arg].index(node)]
    op, (argument, _, index) = nodes[node], output.partition(":")
    positions = [each.name for each in op_types.definition_of(op).output_arg]
    operand = op_types.outputs_of(op)[positions.index(argument)]
    return op.outputs[op_types.members(operand)[int(index)][1]]


def _state_of(node: Any) -> str | None:
    known = port.find_op_def(node.op)
    if known is None or not known.is_stateful:
        return None
    attributes = {attribute.name for attribute in known.attr}
    if "seed" in attributes:
        return "they draw random numbers, and a copy would draw others; use tf.random.stateless_uniform or the like"
    if "shared_name" in attributes and not ("shared_name" in node.attr and node.attr["shared_name"].s):
        return "they make resources, and a copy would make others"
    return None


def _positions(graph: tf.Graph) -> dict[str, bodies.Position]:
    """The positions of functions, by the first operator that calls them: TensorFlow's names have running numbers."""
    known: dict[str, bodies.Position] | None = getattr(graph, _POSITIONS, None)
    if known is None:
        known = {}
        setattr(graph, _POSITIONS, known)
    for op in graph.get_operations():
        if op.type in op_types.CALLS and not all(name in known for name in port.function_names(op)):
            _add_positions(graph, op.node_def, bodies.Position("", ""), known)
    return known


def _add_positions(graph: tf.Graph, node: Any, outer: bodies.Position, known: dict[str, bodies.Position]) -> None:
    scope = node.name.rpartition("/")[0] if "Call" in node.op else node.name
    path = ".".join(filter(None, (outer.path, scope.replace("/", "."))))
    for part, name in port.functions_in(node):
        function = port.find_function(graph, name)
        if name in known or function is None:
            continue
        position = known[name] = bodies.Position(f"{outer.function}/{node.name}/{part}".lstrip("/"), path)
        body = port.graph_of(function)
        if body is not None and bodies.position(body) is None:
            bodies.set_position(body, position)
        inside = function.cached_definition.node_def if body is None else (op.node_def for op in body.get_operations())
        for inner in inside:  # names in a definition may have got numbers
            if inner.op in op_types.CALLS:
                _add_positions(graph, inner, position, known)
