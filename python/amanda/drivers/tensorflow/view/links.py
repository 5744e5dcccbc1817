"""The links from backward operators to their forward operators, and to the gradients that they take and return.

Gradient functions are watched from the time this module is loaded: the operators that one creates are the backward
operators of the operator that it is for. Graphs that are older have only what TensorFlow itself notes in v1 graphs,
`port.original_op`: see `structure`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from amanda.drivers.tensorflow import port
from amanda.drivers.tensorflow.view import op_types
from amanda.drivers.tensorflow.view.op_types import Operand

# The attribute of a graph that holds its gradients, by the names of operators. (A table that is keyed by graphs would
# keep them alive: gradients refer to operators, and those to their graphs.)
_ATTRIBUTE = "_amanda_gradients"


class Gradient(NamedTuple):
    """One call of a gradient function: what it was given and what it returned, in the order of `forward`'s outputs and
    inputs."""

    forward: tf.Operation
    incoming: tuple[tf.Tensor | None, ...]
    returned: tuple[tf.Tensor | None, ...]

    def grad_outputs(self, op: tf.Operation) -> tuple[Operand, ...]:
        """For each output of the forward operator, the position where this operator takes its gradient."""
        return _positions(op_types.outputs_of(self.forward), self.incoming, op.inputs)

    def grad_inputs(self, op: tf.Operation) -> tuple[Operand, ...]:
        """For each input of the forward operator, the position where this operator returns its gradient."""
        return _positions(op_types.inputs_of(self.forward), self.returned, op.outputs)


def gradient_of(op: tf.Operation) -> Gradient | None:
    """The gradient that the operator was created for, as far as it was watched."""
    known: dict[str, Gradient] | None = getattr(op.graph, _ATTRIBUTE, None)
    return known.get(op.name) if known else None


def forward_operators(graph: Any) -> Iterator[tf.Operation]:
    """Those whose gradient functions created operators in the graph, as far as they were watched; some several times."""
    known: dict[str, Gradient] = getattr(graph, _ATTRIBUTE, {})
    return (gradient.forward for gradient in known.values())


def watch(forward: tf.Operation, incoming: Sequence[Any], function: Callable[[], Any]) -> Any:
    """Calls a gradient function, and notes what it creates in the default graph."""
    graph = tf.compat.v1.get_default_graph()
    first = graph.num_operations()
    returned = function()
    created = graph.get_operations()[first:]
    if created:
        results = returned if isinstance(returned, (list, tuple)) else (returned,)
        gradient = Gradient(forward, _tensors(incoming), _tensors(results))
        known = getattr(graph, _ATTRIBUTE, None)
        if known is None:
            known = {}
            setattr(graph, _ATTRIBUTE, known)
        for op in created:
            known.setdefault(op.name, gradient)  # a gradient function inside this one was first
    return returned


def patch() -> None:
    """Watches gradient functions from now on."""
    find = port.gradient_function.original

    @functools.wraps(find)
    def find_watched(op: tf.Operation) -> Any:
        function = find(op)
        if function is None:
            return None

        @functools.wraps(function)
        def watched(forward: tf.Operation, *incoming: Any) -> Any:
            return watch(forward, incoming, lambda: function(forward, *incoming))

        return watched

    port.gradient_function.replace(find_watched)


def _tensors(values: Iterable[Any]) -> tuple[tf.Tensor | None, ...]:
    """Sparse gradients, tf.IndexedSlices, are no operands: they have not their variable's shape."""
    return tuple(value if isinstance(value, tf.Tensor) else None for value in values)


def _positions(
    forward: tuple[Operand, ...], gradients: Sequence[tf.Tensor | None], operands: Iterable[tf.Tensor]
) -> tuple[Operand, ...]:
    indices = {id(operand): index for index, operand in reversed(list(enumerate(operands)))}

    def where(flat: int | None) -> int | None:
        return indices.get(id(gradients[flat])) if flat is not None and flat < len(gradients) else None

    return tuple(_mapped(position, where) for position in forward)


def _mapped(position: Operand, where: Callable[[int | None], int | None]) -> Operand:
    if not isinstance(position, tuple):
        return where(position)
    found = tuple(map(where, position))
    return found if any(index is not None for index in found) else None
