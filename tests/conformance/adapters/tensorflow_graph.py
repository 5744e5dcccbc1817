"""TensorFlow's v1 graphs, which a Session runs."""

from __future__ import annotations

from typing import Any

import amanda
import tensorflow_values as values
from adapter import Capabilities
from description import Nested, Program
from tensorflow_values import array, nested, tf

v1 = tf.compat.v1
BUILDER = values.Builder(v1.while_loop, v1.cond)


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
            BUILDER.append(program, env)
            self.outputs = [env[name] for name in program.outputs]
            gradients = tf.gradients(env[program.loss], list(parameters.values())) if program.loss else []
            self.gradients = (
                [
                    tf.zeros_like(parameter) if gradient is None else gradient
                    for gradient, parameter in zip(gradients, parameters.values(), strict=True)
                ]
                if program.loss
                else []
            )
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


class TensorFlowGraph:
    name = "tensorflow/2.21/graph"
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


ADAPTER = TensorFlowGraph()
