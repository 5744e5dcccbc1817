"""Functions of TensorFlow, with tapes inside them."""

from __future__ import annotations

import amanda
import tensorflow_values as values
from adapter import Capabilities
from description import Nested, Program
from tensorflow_values import array, nested, tf

BUILDER = values.Builder(tf.while_loop, tf.cond)


class Model:
    """A function that gives the outputs, and one that gives gradients, too."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.variables = {name: tf.Variable(array(value)) for name, value in program.parameters.items()}
        signature = [tf.TensorSpec(None, name=name) for name in program.inputs]
        self.forward = tf.function(self._forward, input_signature=signature)
        self.training = tf.function(self._training, input_signature=signature)

    def run(self, *inputs: Nested) -> list[Nested]:
        return [nested(value) for value in self.forward(*map(array, inputs))]

    def step(self, *inputs: Nested) -> tuple[list[Nested], dict[str, Nested]]:
        outputs, gradients = self.training(*map(array, inputs))
        return list(map(nested, outputs)), dict(zip(self.variables, map(nested, gradients), strict=True))

    def saved(self) -> bytes:
        return b"".join(variable.numpy().tobytes() for variable in self.variables.values())

    def exported(self) -> str:
        return str(self.forward.get_concrete_function().graph.as_graph_def())

    def builds(self) -> int:
        """Of each function, one trace is vanilla."""
        return sum(max(0, function.experimental_get_tracing_count() - 1) for function in (self.forward, self.training))

    def _forward(self, *inputs: tf.Tensor) -> list[tf.Tensor]:
        env = self._env(inputs)
        BUILDER.append(self.program, env)
        return [env[name] for name in self.program.outputs]

    def _training(self, *inputs: tf.Tensor) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        with tf.GradientTape() as tape:
            env = self._env(inputs)
            parameters = [env[name] for name in self.variables]
            tape.watch(parameters)
            BUILDER.append(self.program, env)
        gradients = tape.gradient(env[self.program.loss], parameters, unconnected_gradients="zero")
        return [env[name] for name in self.program.outputs], gradients

    def _env(self, inputs: tuple[tf.Tensor, ...]) -> dict[str, tf.Tensor]:
        env = dict(zip(self.program.inputs, inputs, strict=True))
        for name, variable in self.variables.items():  # of no known shape, so that each gradient takes operators
            env[name] = tf.raw_ops.PlaceholderWithDefault(input=variable.read_value(), shape=None)
        return env


class TensorFlowFunction:
    name = "tensorflow/2.21/function"
    capabilities = Capabilities(backward="operators", keeps_gradients=True, symbolic=True, both_sides=True)
    same_ids_as = None
    namespace = "tensorflow"
    ops = values.OPS
    backward_ops = values.BACKWARD_OPS
    leaf_ops: set[str] = set()

    apply = staticmethod(amanda.apply)
    build = staticmethod(Model)
    nested = staticmethod(nested)
    times = staticmethod(values.times)


ADAPTER = TensorFlowFunction()
