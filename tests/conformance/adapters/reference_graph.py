"""The reference driver's graphs."""

from __future__ import annotations

import pickle
from typing import Any

import amanda
import reference_values as values
from adapter import Capabilities
from description import If, Nested, Op, Program

ref = values.ref


class Model:
    """One graph that gives the outputs, and one that gives gradients, too."""

    def __init__(self, program: Program, beside: Any = None) -> None:
        self.program = program
        self.parameters = {name: values.array(value) for name, value in program.parameters.items()}
        self.forward, _ = self._graph()
        self.training, env = self._graph()
        if program.loss:
            for wire in self.training.gradients(env[program.loss], [env[name] for name in self.parameters]):
                self.training.output(wire)

    def run(self, *inputs: Nested) -> list[Nested]:
        return [values.nested(result) for result in self.forward.run(self._operands(inputs))]

    def step(self, *inputs: Nested) -> tuple[list[Nested], dict[str, Nested]]:
        results = [values.nested(result) for result in self.training.run(self._operands(inputs))]
        count = len(self.program.outputs)
        return results[:count], dict(zip(self.parameters, results[count:], strict=True))

    def saved(self) -> bytes:
        return pickle.dumps({name: values.nested(array) for name, array in self.parameters.items()})

    def exported(self) -> str:
        return repr((self.forward.node_names(), self.training.node_names()))

    def builds(self) -> int:
        return self.forward.builds() + self.training.builds()

    def _graph(self) -> tuple[Any, dict[str, int]]:
        graph = ref.Graph()
        env = {name: graph.input() for name in (*self.program.inputs, *self.parameters)}
        append_steps(graph, self.program, env)
        for name in self.program.outputs:
            graph.output(env[name])
        return graph, env

    def _operands(self, inputs: tuple[Nested, ...]) -> list[Any]:
        return [*map(values.array, inputs), *self.parameters.values()]


def append_steps(graph: Any, program: Program, env: dict[str, int]) -> None:
    for step in program.steps:
        given = [env[name] for name in step.inputs]
        if isinstance(step, Op):
            env[step.name] = graph.add(step.kind, given, step.name)[0]
        elif isinstance(step, If):
            env[step.name] = graph.add_if(
                env[step.condition], given, body_of(step.taken), body_of(step.other), step.name
            )[0]
        else:
            env[step.name] = graph.add_loop(step.times, given, body_of(step.body), step.name)[0]


def body_of(program: Program) -> Any:
    body = ref.Graph()
    env = {name: body.input() for name in program.inputs}
    append_steps(body, program, env)
    for name in program.outputs:
        body.output(env[name])
    return body


class ReferenceGraph:
    name = "reference/1/graph"
    capabilities = Capabilities(**ref.capabilities(graph=True))
    same_ids_as = "reference/1/eager"
    namespace = "ref"
    ops = values.OPS
    backward_ops = values.BACKWARD_OPS
    leaf_ops: set[str] = set()

    apply = staticmethod(amanda.apply)
    build = staticmethod(Model)
    nested = staticmethod(values.nested)
    times = staticmethod(values.times)


ADAPTER = ReferenceGraph()
