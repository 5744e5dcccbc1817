"""The reference driver, one operator at a time."""

from __future__ import annotations

import pickle
from typing import Any

import amanda
import reference_values as values
from adapter import Capabilities
from description import If, Nested, Op, Program

ref = values.ref


class Model:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.parameters = {name: values.array(value) for name, value in program.parameters.items()}

    def run(self, *inputs: Nested) -> list[Nested]:
        env = self._forward(inputs, self.parameters)
        return [values.nested(env[name]) for name in self.program.outputs]

    def step(self, *inputs: Nested) -> tuple[list[Nested], dict[str, Nested]]:
        leaves = {name: ref.leaf(values.copy(array)) for name, array in self.parameters.items()}
        env = self._forward(inputs, leaves)
        loss = env[self.program.loss]
        ref.backward(loss, values.filled_like(loss, 1.0))
        gradients = {name: ref.gradient(leaf) or values.filled_like(leaf, 0.0) for name, leaf in leaves.items()}
        return [values.nested(env[name]) for name in self.program.outputs], {
            name: values.nested(gradient) for name, gradient in gradients.items()
        }

    def saved(self) -> bytes:
        return pickle.dumps({name: values.nested(array) for name, array in self.parameters.items()})

    def exported(self) -> str:
        return repr(self.program)

    def builds(self) -> None:
        return None

    def _forward(self, inputs: tuple[Nested, ...], parameters: dict[str, Any]) -> dict[str, Any]:
        env = parameters | dict(zip(self.program.inputs, map(values.array, inputs), strict=True))
        return run_steps(self.program, env)


def run_steps(program: Program, env: dict[str, Any]) -> dict[str, Any]:
    for step in program.steps:
        given = [env[name] for name in step.inputs]
        with ref.place(step.name):
            if isinstance(step, Op):
                env[step.name] = ref.call(step.kind, given)[0]
            elif isinstance(step, If):
                taken = step.taken if values.nested(env[step.condition])[0] else step.other
                env[step.name] = run_body(taken, given)[0]
            else:
                for _ in range(step.times):
                    given = run_body(step.body, given)
                env[step.name] = given[0]
    return env


def run_body(body: Program, given: list[Any]) -> list[Any]:
    env = run_steps(body, dict(zip(body.inputs, given, strict=True)))
    return [env[name] for name in body.outputs]


class ReferenceEager:
    name = "reference/1/eager"
    capabilities = Capabilities(**ref.capabilities(graph=False))
    same_ids_as = None
    namespace = "ref"
    ops = values.OPS
    backward_ops = values.BACKWARD_OPS
    leaf_ops = {"AccumulateGrad"}

    apply = staticmethod(amanda.apply)
    build = staticmethod(Model)
    nested = staticmethod(values.nested)
    times = staticmethod(values.times)


ADAPTER = ReferenceEager()
