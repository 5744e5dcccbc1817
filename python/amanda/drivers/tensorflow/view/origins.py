"""Origins: which operators a symbol comes from, past the nodes that only pass values on."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from amanda.driver.protocol import Origin
from amanda.drivers.tensorflow import port
from amanda.drivers.tensorflow.view import bodies, op_types, places

# Their first input is what they pass on.
_PASS_THE_FIRST = {"Identity", "ReadVariableOp", "Enter", "Exit", "Switch", "NextIteration", "LoopCond"}
_PASS_THE_FIRST |= {f"Ref{name}" for name in _PASS_THE_FIRST}
_VARIABLES = {"VarHandleOp", "VariableV2", "Variable"}


def origins(symbol: object) -> list[Origin] | None:
    """See `amanda.driver.protocol.Driver.origins`."""
    if not isinstance(symbol, tf.Tensor) or port.is_eager(symbol):
        return None
    found: dict[Origin, None] = {}
    seen: dict[int, tf.Tensor] = {}
    waiting = [symbol]
    while waiting:
        tensor = waiting.pop()
        if id(tensor) in seen:
            continue
        seen[id(tensor)] = tensor
        passed_on = _passed_on(tensor)
        waiting += passed_on or _carried(tensor)
        if passed_on is None and not _is_number(tensor.op):
            found[_origin(tensor)] = None
    return list(found)


def _origin(tensor: tf.Tensor) -> Origin:
    op = tensor.op
    if op_types.computes(op):
        return Origin(places.place_of(op, *bodies.position_of(op.graph)).id)
    is_parameter = op.type in _VARIABLES or tensor.dtype == tf.resource
    return Origin(None, (bodies.position_of(op.graph).function, tensor.name), is_parameter)


def _passed_on(tensor: tf.Tensor) -> Sequence[tf.Tensor] | None:
    """The values of which it is one; None if its operator makes it, or if it comes from outside."""
    op = tensor.op
    if op_types.computes(op):
        return None
    if op.type in _PASS_THE_FIRST:
        return [op.inputs[0]]
    if op.type == "IdentityN":
        return [op.inputs[tensor.value_index]]
    if op.type in ("Merge", "RefMerge", "AmandaTap"):
        return list(op.inputs)
    if op.type in op_types.CALLS:
        return _returned(op, tensor.value_index)
    if op.type == "Placeholder" and port.is_function(op.graph):
        return _captured(op.graph, tensor)
    return None


def _returned(op: tf.Operation, index: int) -> list[tf.Tensor] | None:
    """The values that the functions of a call return there. A loop that does not run returns its input."""
    graphs = [port.graph_of(found) for name in port.function_names(op) if (found := port.find_function(op.graph, name))]
    returned = [graph.outputs[index] for graph in graphs if graph is not None and index < len(graph.outputs)]
    if op.type in ("While", "StatelessWhile"):
        returned = [op.inputs[index], *(tensor for tensor in returned if tensor.dtype == op.outputs[index].dtype)]
    return returned or None


def _carried(tensor: tf.Tensor) -> list[tf.Tensor]:
    """The value of the last iteration, if the loop carries this one. The first iteration gets it from outside."""
    graph = tensor.graph
    if not port.is_loop_body(graph):
        return []
    return [graph.outputs[i] for i, given in enumerate(graph.inputs) if given is tensor and i < len(graph.outputs)]


def _captured(graph: tf.Graph, tensor: tf.Tensor) -> list[tf.Tensor] | None:
    """The value that a function's graph takes from the graph around it."""
    for external, internal in graph.captures:
        if internal is tensor and not port.is_eager(external):
            return [external]
    return None


def _is_number(op: tf.Operation) -> bool:
    """A number, or a list of sizes or axes, which the program wrote."""
    if op.type != "Const":
        return False
    tensor = op.outputs[0]
    return bool(tensor.shape.rank == 0 or (tensor.shape.rank == 1 and tensor.dtype.is_integer))
