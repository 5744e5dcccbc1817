"""TensorFlow's v1 graphs, which a Session runs."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np
from adapter import Capabilities, NotInstalled
from description import If, Loop, Nested, Op, Program

# TensorFlow and torch are never in one process.
if importlib.util.find_spec("tensorflow") is None or importlib.util.find_spec("torch") is not None:
    raise NotInstalled("TensorFlow's tests run in an environment that has it, and not torch")

import tensorflow as tf

v1 = tf.compat.v1


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


class Model:
    """One graph, with the gradients in it."""

    def __init__(self, program: Program) -> None:
        self.program, self.graph = program, tf.Graph()
        v2 = v1.control_flow_v2_enabled()
        v1.disable_control_flow_v2()
        try:
            self._build(program)
        finally:
            if v2:
                v1.enable_control_flow_v2()

    def _build(self, program: Program) -> None:
        with self.graph.as_default():
            self.inputs = {name: v1.placeholder(tf.float32, None, name) for name in program.inputs}
            self.variables = {
                name: v1.get_variable(name, initializer=array(value), use_resource=True, validate_shape=False)
                for name, value in program.parameters.items()
            }
            # Of no known shape, so that each operator's gradient takes operators.
            parameters = {
                name: v1.placeholder_with_default(variable.read_value(), None)
                for name, variable in self.variables.items()
            }
            env = {**self.inputs, **parameters}
            append_steps(program, env)
            self.outputs = [env[name] for name in program.outputs]
            gradients = tf.gradients(env[program.loss], list(parameters.values())) if program.loss else []
            self.gradients = [
                tf.zeros_like(parameter) if gradient is None else gradient
                for gradient, parameter in zip(gradients, parameters.values(), strict=True)
            ] if program.loss else []
            self.session = v1.Session()
            self.session.run(v1.global_variables_initializer())

    def run(self, *inputs: Nested) -> list[Nested]:
        return [nested(value) for value in self.session.run(self.outputs, self._feeds(inputs))]

    def step(self, *inputs: Nested) -> tuple[list[Nested], dict[str, Nested]]:
        outputs, gradients = self.session.run((self.outputs, self.gradients), self._feeds(inputs))
        return list(map(nested, outputs)), dict(zip(self.variables, map(nested, gradients), strict=True))

    def saved(self) -> bytes:
        return b"".join(value.tobytes() for value in self.session.run(list(self.variables.values())))

    def exported(self) -> str:
        with self.graph.as_default():
            return str(v1.train.export_meta_graph(clear_devices=False))

    def builds(self) -> int:
        cache = getattr(self.graph, "_amanda_artifacts", None)
        return cache.info().builds if cache else 0

    def _feeds(self, inputs: tuple[Nested, ...]) -> dict[tf.Tensor, Any]:
        return {tensor: array(value) for tensor, value in zip(self.inputs.values(), inputs, strict=True)}


def append_steps(program: Program, env: dict[str, tf.Tensor]) -> None:
    for step in program.steps:
        given = [env[name] for name in step.inputs]
        if isinstance(step, Op):
            with tf.name_scope(step.name):
                env[step.name] = BUILDERS[step.kind](*given)
        elif isinstance(step, Loop):
            env[step.name] = loop(step, given)
        else:
            env[step.name] = choice(step, env[step.condition], given)


def loop(step: Loop, given: list[tf.Tensor]) -> tf.Tensor:
    def body(count: tf.Tensor, *values: tf.Tensor) -> list[tf.Tensor]:
        return [tf.subtract(count, -1), *run_body(step.body, list(values))]

    return v1.while_loop(lambda count, *_: count < step.times, body, [0, *given], name=step.name)[1]


def choice(step: If, condition: tf.Tensor, given: list[tf.Tensor]) -> tf.Tensor:
    is_taken = tf.not_equal(tf.reshape(condition, []), 0)
    taken, other = (lambda: run_body(step.taken, given)[0]), (lambda: run_body(step.other, given)[0])
    return v1.cond(is_taken, taken, other, name=step.name)


def run_body(program: Program, given: list[tf.Tensor]) -> list[tf.Tensor]:
    env = dict(zip(program.inputs, given, strict=True))
    append_steps(program, env)
    return [env[name] for name in program.outputs]


def array(value: Nested) -> Any:
    return np.asarray(value, np.float32)


def nested(value: Any) -> Nested:
    return np.asarray(value).tolist()


class TensorFlowGraph:
    name = "tensorflow/2.21/graph"
    capabilities = Capabilities(backward="operators", keeps_gradients=True, symbolic=True, both_sides=True)
    same_ids_as = None
    ops = OPS
    backward_ops = BACKWARD_OPS
    leaf_ops: set[str] = set()

    build = staticmethod(Model)
    nested = staticmethod(nested)

    @staticmethod
    def times(value: Any, factors: list[float]) -> Any:
        return value * np.asarray(factors, np.float32)


ADAPTER = TensorFlowGraph()
