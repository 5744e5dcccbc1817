"""TensorFlow's operators and arrays, in graphs of both kinds."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np
from adapter import NotInstalled
from description import If, Loop, Nested, Op, Program

# TensorFlow and torch are never in one process.
if importlib.util.find_spec("tensorflow") is None or importlib.util.find_spec("torch") is not None:
    raise NotInstalled("TensorFlow's tests run in an environment that has it, and not torch")

import tensorflow as tf


def flatten(x: tf.Tensor) -> tf.Tensor:
    """By way of a list of tensors, which only TensorFlow's own operators can use."""
    rows = tf.raw_ops.TensorListFromTensor(tensor=tf.reshape(x, [1, -1]), element_shape=[-1])
    return tf.raw_ops.TensorListGetItem(input_handle=rows, index=0, element_shape=[-1], element_dtype=tf.float32)


BUILDERS: dict[str, Callable[..., tf.Tensor]] = {
    "mul": tf.multiply,
    "add": tf.add,
    "sub": tf.subtract,
    "neg": tf.negative,
    "relu": tf.nn.relu,
    "matmul": lambda a, b: tf.raw_ops.MatMul(a=a, b=b),  # of the rank that tf.matmul does not know
    "sum": tf.reduce_sum,
    "flatten": flatten,
}
OPS = {
    "mul": "Mul",
    "add": "AddV2",
    "sub": "Sub",
    "neg": "Neg",
    "relu": "Relu",
    "matmul": "MatMul",
    "sum": "Sum",
    "flatten": "TensorListGetItem",
}
# What gradients of operands of unknown shapes take.
_SUMS = {"Shape", "BroadcastGradientArgs", "Sum", "Reshape"}
BACKWARD_OPS = {
    "mul": {"Mul", *_SUMS},
    "add": _SUMS,
    "sub": {"Neg", *_SUMS},
    "neg": {"Neg"},
    "relu": {"ReluGrad"},
    "matmul": {"MatMul"},
    "sum": {
        *("Shape", "Size", "AddV2", "FloorMod", "Range", "OnesLike", "Fill", "DynamicStitch", "Reshape", "BroadcastTo"),
        *("Maximum", "FloorDiv", "Tile"),
    },
    "flatten": {"TensorListSetItem"},
}


class Builder:
    """Appends a program's operators to the default graph. `while_loop` and `cond`: those of its kind of graph."""

    def __init__(self, while_loop: Callable[..., Any], cond: Callable[..., Any]) -> None:
        self.while_loop, self.cond = while_loop, cond

    def append(self, program: Program, env: dict[str, tf.Tensor]) -> None:
        for step in program.steps:
            given = [env[name] for name in step.inputs]
            if isinstance(step, Op):
                with tf.name_scope(step.name):
                    env[step.name] = BUILDERS[step.kind](*given)
            elif isinstance(step, Loop):
                env[step.name] = self._loop(step, given)
            else:
                env[step.name] = self._choice(step, env[step.condition], given)

    def _loop(self, step: Loop, given: list[tf.Tensor]) -> tf.Tensor:
        def body(count: tf.Tensor, *values: tf.Tensor) -> list[tf.Tensor]:
            return [tf.subtract(count, -1), *self._run_body(step.body, list(values))]

        return self.while_loop(lambda count, *_: count < step.times, body, [0, *given], name=step.name)[1]

    def _choice(self, step: If, condition: tf.Tensor, given: list[tf.Tensor]) -> tf.Tensor:
        is_taken = tf.not_equal(tf.reshape(condition, []), 0)
        taken, other = (lambda: self._run_body(step.taken, given)[0]), (lambda: self._run_body(step.other, given)[0])
        return self.cond(is_taken, taken, other, name=step.name)

    def _run_body(self, program: Program, given: list[tf.Tensor]) -> list[tf.Tensor]:
        env = dict(zip(program.inputs, given, strict=True))
        self.append(program, env)
        return [env[name] for name in program.outputs]


def array(value: Nested) -> Any:
    return np.asarray(value, np.float32)


def nested(value: Any) -> Nested:
    return np.asarray(value).tolist()


def times(value: Any, factors: list[float]) -> Any:
    return value * np.asarray(factors, np.float32)
