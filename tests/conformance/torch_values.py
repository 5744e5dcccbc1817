"""PyTorch's programs and tensors, in both modes."""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Callable, Iterable
from typing import Any

from adapter import NotInstalled
from description import If, Nested, Op, Program

if importlib.util.find_spec("torch") is None or importlib.util.find_spec("amanda._torch") is None:
    raise NotInstalled("PyTorch, or its driver in this build of amanda")

import amanda
import torch

FUNCTIONS = {
    "mul": torch.mul,
    "add": torch.add,
    "sub": torch.sub,
    "neg": torch.neg,
    "relu": torch.relu,
    "matmul": torch.matmul,
    "sum": torch.sum,
    "flatten": lambda x: x.view(-1),
}


class Step(torch.nn.Module):
    """An operator in its own module, with the path as its name."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.function = FUNCTIONS[kind]

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.function(*inputs)


class Steps(torch.nn.Module):
    """The steps of programs; of a conditional, those of both branches."""

    def __init__(self, *programs: Program) -> None:
        super().__init__()
        for program in programs:
            for step in program.steps:
                self.add_module(step.name, module_of(step))

    def run(self, program: Program, env: dict[str, torch.Tensor]) -> list[torch.Tensor]:
        for step in program.steps:
            given = [env[name] for name in step.inputs]
            if isinstance(step, If):
                given.insert(0, env[step.condition])
            env[step.name] = getattr(self, step.name)(*given)
        return [env[name] for name in program.outputs]

    def run_body(self, program: Program, given: list[torch.Tensor]) -> list[torch.Tensor]:
        return self.run(program, dict(zip(program.inputs, given, strict=True)))


class Repeated(Steps):
    def __init__(self, times: int, body: Program) -> None:
        super().__init__(body)
        self.times, self.body = times, body

    def forward(self, *carried: torch.Tensor) -> torch.Tensor:
        values = list(carried)
        for _ in range(self.times):
            values = self.run_body(self.body, values)
        return values[0]


class Choice(Steps):
    def __init__(self, taken: Program, other: Program) -> None:
        super().__init__(taken, other)
        self.taken, self.other = taken, other

    def forward(self, condition: torch.Tensor, *inputs: torch.Tensor) -> torch.Tensor:
        return self.run_body(self.taken if condition[0] else self.other, list(inputs))[0]


def module_of(step: Any) -> torch.nn.Module:
    if isinstance(step, Op):
        return Step(step.kind)
    return Choice(step.taken, step.other) if isinstance(step, If) else Repeated(step.times, step.body)


class Whole(Steps):
    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self.program = program
        for name, value in program.parameters.items():
            self.register_parameter(name, torch.nn.Parameter(torch.tensor(value, dtype=torch.float64)))

    def forward(self, *inputs: torch.Tensor) -> list[torch.Tensor]:
        env = dict(self.named_parameters()) | dict(zip(self.program.inputs, inputs, strict=True))
        return self.run(self.program, env)


class Model:
    def __init__(self, program: Program, beside: Model | None = None) -> None:
        self.program = program
        self.module = Whole(program) if beside is None else beside.module
        self.call: Callable[..., list[torch.Tensor]] = self.module

    def run(self, *inputs: Nested) -> list[Nested]:
        return nested_all(self.call(*tensors(inputs)))

    def step(self, *inputs: Nested) -> tuple[list[Nested], dict[str, Nested]]:
        self.module.zero_grad()
        results = self.call(*tensors(inputs))
        results[self.program.outputs.index(self.program.loss)].backward()
        gradients = {
            name: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            for name, parameter in self.module.named_parameters()
        }
        return nested_all(results), dict(zip(gradients, nested_all(gradients.values()), strict=True))

    def saved(self) -> bytes:
        file = io.BytesIO()
        torch.save(self.module.state_dict(), file)
        return file.getvalue()

    def exported(self) -> str:
        inputs = tuple(torch.ones(1, 3, dtype=torch.float64) for _ in self.program.inputs)
        return str(torch.export.export(self.module, inputs).graph)

    def builds(self) -> int | None:
        return None


@amanda.disabled()
def tensors(inputs: Iterable[Nested]) -> list[torch.Tensor]:
    return [torch.tensor(nested, dtype=torch.float64) for nested in inputs]


@amanda.disabled()
def nested_all(results: Iterable[torch.Tensor]) -> list[Nested]:
    return [result.tolist() for result in results]


class PyTorch:
    """What both modes have in common."""

    minor = ".".join(torch.__version__.split(".")[:2])
    namespace = "aten"
    ops = {kind: kind for kind in FUNCTIONS} | {"flatten": "view"}
    backward_ops = {kind: {f"{kind.capitalize()}Backward0"} for kind in FUNCTIONS} | {
        "matmul": {"MmBackward0"},
        "flatten": {"ViewBackward0"},
    }
    leaf_ops = {"AccumulateGrad"}

    def nested(self, value: torch.Tensor) -> Nested:
        return value.tolist()

    def times(self, value: torch.Tensor, factors: list[float]) -> torch.Tensor:
        return value * torch.tensor(factors, dtype=value.dtype).reshape(value.shape)
