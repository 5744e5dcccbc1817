"""Loops that TensorFlow vectorizes, of `tf.vectorized_map` and jacobians: each operator of the body is converted to
operators that compute it for all iterations at once. Only those run, and tools are shown them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import tensorflow as tf

from amanda.drivers.tensorflow import port
from amanda.drivers.tensorflow.lower import gradients
from amanda.drivers.tensorflow.view import links, op_types


def body_operator(op: tf.Operation) -> tf.Operation | None:
    """The operator of a loop's body that this one was made of; None if it is in no loop that was vectorized."""
    found = None
    for found in _body_operators(op):  # noqa: B007
        pass
    return found


def _body_operators(op: tf.Operation) -> Iterator[tf.Operation]:
    """A body may have been vectorized itself. Then there are several operators; the program's is the last."""
    while (original := port.original_op(op)) is not None and op.name.startswith(f"{original.name}/pfor/"):
        yield original
        op = original


def gradients_of(operators: Iterable[tf.Operation]) -> dict[tf.Operation, links.Gradient]:
    """The gradients of operators that were made of backward operators. Such an operator takes and returns the gradients
    of all iterations. They do not have the shapes of the forward operator's operands, and are shown as none of
    these."""
    made: dict[tf.Operation, tf.Operation] = {}  # operators of a body, with the operators that stand for them
    backward: dict[tf.Operation, links.Gradient] = {}
    for op in operators:
        body = body_operator(op)
        if body is None:
            continue
        gradient = links.gradient_of(body)
        if gradient is not None:
            backward[op] = gradient
        elif body not in made or made[body].type != body.type:
            made[body] = op
    return {
        op: links.Gradient(made.get(gradient.forward, gradient.forward), (), ()) for op, gradient in backward.items()
    }


def leave_bodies_out(graph: Any) -> None:
    """TensorFlow runs calls that have effects, also those of a body. Some have none but taps."""
    bodies = {found for op in graph.get_operations() for found in _body_operators(op)}
    for op in (op for op in graph.get_operations() if op in bodies):
        if op.type in op_types.CALLS and not _has_effects(op):
            if op in graph.control_outputs:
                graph.control_outputs.remove(op)
            for user in port.control_users(op):
                others = [other for other in user.control_inputs if other is not op]
                port.set_control_inputs(user, [*others, *op.control_inputs])


def _has_effects(op: tf.Operation) -> bool:
    if op.type in op_types.CALLS:
        called = [port.find_function(op.graph, name) for name in port.function_names(op)]
        graphs = [None if function is None else port.graph_of(function) for function in called]
        return any(graph is None or any(map(_has_effects, graph.get_operations())) for graph in graphs)
    return op.type not in op_types.PLUMBING and bool(op_types.definition_of(op).is_stateful)


def register() -> None:
    """Called once: TensorFlow keeps the registration for ever."""
    port.register_vectorized("AmandaTap")(_convert)


def _convert(conversion: Any) -> Any:
    """Taps of a body do not run, as its operators do not: what was made of those gets taps of its own. So an edit becomes
    what was edited, and a replacement what it replaced."""
    tap = conversion.op
    original = gradients.original_of(tap)
    if original is not None:
        return [port.vectorized(conversion, output) for output in original.outputs]
    if tap.outputs:
        edited = gradients.edited_by(tap)
        return [conversion.inputs[edited[index]] for index in range(len(tap.outputs))]
    return tf.no_op()
