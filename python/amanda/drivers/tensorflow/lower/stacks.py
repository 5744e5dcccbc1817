"""The inputs of a loop's operators, saved for the loop of their gradients.

TensorFlow saves values that are computed in a loop on stacks. It does not save values that are the same in each
iteration. After a tap these may differ, and need a stack of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from amanda.drivers.tensorflow import port

# `create(node_def, inputs, control_inputs, operator)`: a node of ours in place of the operator.
Create = Callable[[Any, list[tf.Tensor], list[tf.Operation], tf.Operation], tf.Operation]


class Counter(NamedTuple):
    """How a loop counts its iterations, for that of the gradients. Pushes and pops of one iteration come after `step`, and
    before those of the next, which `next` begins."""

    step: tf.Operation
    next: tf.Operation


def entered(tensor: tf.Tensor) -> tf.Tensor | None:
    """The value outside of the loops that enters them as this one, and is the same in each iteration. None if this one
    does not enter a loop so."""
    outside = tensor
    while outside.op.type == "Enter" and outside.op.get_attr("is_constant"):
        outside = outside.op.inputs[0]
    return None if outside is tensor else outside


def counters(gradient_loop: list[tf.Operation]) -> tuple[Counter, Counter] | None:
    """The counters of a loop, and of the loop of its gradients, which consists of these operators. None if it is no
    loop of gradients."""
    for op in gradient_loop:
        if op.type == "LoopCond" and op.inputs[0].op.type == "GreaterEqual":
            merge = op.inputs[0].op.inputs[0].op
            count = _counted(merge.inputs[0].op.inputs[0].op) if merge.type == "Merge" else None
            if count is not None:
                return _counter(count.inputs[0].op.inputs[0].op), _counter(merge)
    return None


def _counted(source: tf.Operation) -> tf.Operation | None:
    """The operator that returns the number of iterations. The number leaves the loop, and is on a stack if the loop is
    in another loop."""
    if source.type == "StackPopV2":
        outside = entered(source.inputs[0])
        handles = [source.inputs[0] if outside is None else outside]
        while handles:
            for user in handles.pop().consumers():
                if user.type == "StackPushV2":
                    source = user.inputs[1].op
                elif user.type == "Enter":
                    handles.append(user.outputs[0])
    return source if source.type == "Exit" else None


def _counter(merge: tf.Operation) -> Counter:
    following = merge.inputs[1].op
    return Counter(following.inputs[0].op, following)


class Stack:
    """One value in each iteration, last in, first out."""

    def __init__(self, create: Create, op: tf.Operation, dtype: tf.DType) -> None:
        self._create, self._op, self._dtype = create, op, dtype.base_dtype.as_datatype_enum
        size = port.NodeDef(op="Const")
        size.attr["dtype"].type = tf.int32.as_datatype_enum
        size.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(-1, tf.int32))
        stack = port.NodeDef(op="StackV2")
        stack.attr["elem_type"].type = self._dtype
        self._handle = create(stack, [create(size, [], [], op).outputs[0]], [], op).outputs[0]

    def push(self, value: tf.Tensor, frames: list[tf.Operation]) -> tf.Operation:
        """`frames`: nodes that enter the loops around it, the outermost first."""
        node_def = port.NodeDef(op="StackPushV2")
        node_def.attr["T"].type = self._dtype
        return self._create(node_def, [self._entered(frames), value], [], self._op)

    def pop(self, frames: list[tf.Operation], after: list[tf.Operation]) -> tf.Operation:
        node_def = port.NodeDef(op="StackPopV2")
        node_def.attr["elem_type"].type = self._dtype
        return self._create(node_def, [self._entered(frames)], after, self._op)

    def _entered(self, frames: list[tf.Operation]) -> tf.Tensor:
        handle = self._handle
        for frame in frames:
            node_def = port.NodeDef(op="Enter")
            node_def.attr["T"].type = tf.resource.as_datatype_enum
            node_def.attr["is_constant"].b = True
            for name in ("frame_name", "parallel_iterations"):
                node_def.attr[name].CopyFrom(frame.node_def.attr[name])
            handle = self._create(node_def, [handle], [], self._op).outputs[0]
        return handle
