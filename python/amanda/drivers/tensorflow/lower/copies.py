"""Copies of functions that a v1 graph calls, with taps: the graph's own functions stay as they are."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import tensorflow as tf

from amanda import _core
from amanda.drivers.tensorflow import port
from amanda.drivers.tensorflow.lower import in_place, nodes, tap_nodes
from amanda.drivers.tensorflow.lower.versions import Versions
from amanda.drivers.tensorflow.view.called import Function
from amanda.drivers.tensorflow.view.graph_site import GraphSite, Plans
from amanda.drivers.tensorflow.view.links import Gradient
from amanda.drivers.tensorflow.view.saved import SavedValues

_STATELESS = "Stateless"


class Copies:
    """The functions that run instead. A function is copied if it has taps, or calls one that has."""

    def __init__(
        self,
        graph: tf.Graph,
        backend: _core.GraphBackend,
        edited: Sequence[tf.Operation],
        saved: Callable[[], SavedValues],
    ) -> None:
        """`edited`: operators in functions that have routines which may edit."""
        self._graph, self._backend = graph, backend
        self._edited = edited
        self._saved = saved() if edited else None
        self._versions = Versions(self._saved, edited) if self._saved else None
        self._names: dict[str, str] = {}
        self.kept: list[object] = []

    def add(self, function: Function, site: GraphSite, plans: Plans) -> None:
        """Copies a function, if it must be copied. Those that it calls come before it."""
        plans = [(shown, taps) for shown, taps in plans if shown.op in function.nodes]
        definition = type(function.definition)()
        definition.CopyFrom(function.definition)
        changed = [node.name for node in definition.node_def if self.rename(node)]
        takes = self._versions.save(function, definition) if self._versions else None
        if not plans and not changed and takes is None:
            return
        graph = port.graph_of_definition(self._graph, definition)
        copies = {op: graph.get_operation_by_name(name) for op, name in function.nodes.items()}
        if plans:
            gradients = {
                copies[op]: Gradient(copies.get(gradient.forward, gradient.forward), (), ())
                for op, gradient in site.gradients.items()
                if op in copies
            }
            gradients |= {
                graph.get_operation_by_name(name): Gradient(copies[op], (), ()) for name, op in (takes or {}).items()
            }
            if self._saved:
                gradients |= self._savers(self._saved, graph, copies)
            inserted = in_place.InPlace(graph, gradients, self._backend).insert(
                [(tap_nodes.copied(self._backend, shown, copies), taps) for shown, taps in plans]
            )
            self.kept.append(inserted)
        graph.control_outputs.extend(
            op for op in map(graph.get_operation_by_name, changed) if op not in graph.control_outputs
        )
        ours = nodes.of(self._graph)
        ours.count += 1
        name = f"{nodes.FUNCTION_PREFIX}{ours.count}_{function.name}"
        port.add_function(self._graph, name, graph, definition.attr)
        self._names[function.name] = name

    def calls(self, operators: Sequence[tf.Operation]) -> Collection[tf.Operation]:
        """Those of the operators that call functions which were copied."""
        return [op for op in operators if any(name in self._names for name in port.function_names(op))]

    def rename(self, node_def: Any) -> bool:
        """Has a node call copies. Then it has effects, those of taps."""
        renamed = port.rename_functions(node_def, self._names)
        if renamed:
            if node_def.op == "PartitionedCall":
                node_def.op = "StatefulPartitionedCall"
            node_def.op = node_def.op.removeprefix(_STATELESS)
        return renamed

    def _savers(
        self, saved: SavedValues, graph: Any, copies: dict[tf.Operation, tf.Operation]
    ) -> dict[tf.Operation, Gradient]:
        """Nodes that save operands of operators for their gradients in other graphs. Like backward operators, they take
        the value that the operator got, and the result that it gave."""
        found = {}
        for op in (op for op in self._edited if op in copies):
            for saver in saved.savers(op):
                copy = copies.get(saver.op) if saver.op is not None else None
                if saver.op is None and saver.result < len(graph.outputs):
                    copy = _identity(graph, graph.outputs[saver.result])
                    graph.outputs[saver.result] = copy.outputs[0]
                if copy is not None:
                    found[copy] = Gradient(copies[op], (), ())
        return found


def _identity(graph: Any, tensor: tf.Tensor) -> tf.Operation:
    node_def = port.NodeDef(op="Identity")
    node_def.attr["T"].type = tensor.dtype.as_datatype_enum
    return nodes.of(graph).create(graph, node_def, [tensor], [], tensor.op)
