"""Programs in a few words, which every adapter can build."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

Nested: TypeAlias = "float | list[Nested]"


@dataclass(frozen=True)
class Op:
    """An operator: "mul", "add", "sub", "neg", "relu", "matmul", "sum", "flatten". Its result has the step's name."""

    name: str
    kind: str
    inputs: tuple[str, ...]


@dataclass(frozen=True)
class Loop:
    """Runs a program, which gives as many values as it takes, some times. The first of them has the step's name."""

    name: str
    times: int
    inputs: tuple[str, ...]
    body: Program


@dataclass(frozen=True)
class If:
    """`taken` if the value `condition` is not 0, else `other`. The first that it gives has the step's name."""

    name: str
    condition: str
    inputs: tuple[str, ...]
    taken: Program
    other: Program


@dataclass(frozen=True)
class Program:
    inputs: tuple[str, ...]
    steps: tuple[Op | Loop | If, ...]
    outputs: tuple[str, ...]
    parameters: dict[str, Nested] = field(default_factory=dict)
    loss: str | None = None
    """The value, of one element, whose gradients with respect to the parameters step() computes."""

    def ops(self, path: str = "") -> Iterator[tuple[str, Op]]:
        """Every operator, with its path: "loop.step"."""
        for step in self.steps:
            here = f"{path}.{step.name}" if path else step.name
            if isinstance(step, Op):
                yield here, step
            elif isinstance(step, Loop):
                yield from step.body.ops(here)
            else:
                yield from step.taken.ops(here)
                yield from step.other.ops(here)


# ---- the programs of the tests --------------------------------------------------------------------------------------

NEURON = Program(
    inputs=("x",),
    parameters={"w": [[2.0, 1.0, -1.0]], "b": [[0.5, 4.0, 1.0]], "v": [[3.0], [1.0], [2.0]]},
    steps=(
        Op("first", "mul", ("x", "w")),
        Op("shift", "add", ("first", "b")),
        Op("positive", "relu", ("shift",)),
        Op("second", "matmul", ("positive", "v")),
        Op("total", "sum", ("second",)),
    ),
    outputs=("total", "positive"),
    loss="total",
)
X = [[1.0, -2.0, 3.0]]
MASK = [0.0, 1.0, 1.0]


@dataclass(frozen=True)
class Result:
    """What step() gives for NEURON: numbers that floating point holds exactly."""

    loss: float
    positive: list[float]
    w: list[float]
    b: list[float]
    v: list[float]


def neuron(*, mask: list[float] | None = None, zeros: bool = False) -> Result:
    """NEURON by hand: sum(relu(x * w + b) @ v) and its gradients; with a mask on `w` and on its gradient."""
    x, mask = X[0], mask or [1.0, 1.0, 1.0]
    w, b, v = (flat(NEURON.parameters[name]) for name in "wbv")
    shifted = [x[i] * w[i] * mask[i] + b[i] for i in range(3)]
    positive = [0.0 if zeros else max(s, 0.0) for s in shifted]
    passes = [0.0 if zeros or s <= 0 else 1.0 for s in shifted]
    return Result(
        loss=sum(positive[i] * v[i] for i in range(3)),
        positive=positive,
        w=[passes[i] * v[i] * x[i] * mask[i] for i in range(3)],
        b=[passes[i] * v[i] for i in range(3)],
        v=positive,
    )


def flat(nested: Nested) -> list[float]:
    return [number for item in nested for number in flat(item)] if isinstance(nested, list) else [nested]


ADDS_THREE_TIMES = Program(
    inputs=("x",),
    steps=(Loop("loop", 3, ("x", "x"), Program(("sum", "x"), (Op("step", "add", ("sum", "x")),), ("step", "x"))),),
    outputs=("loop",),
)

FLIPS_OR_CLIPS = Program(
    inputs=("x", "condition"),
    steps=(
        If(
            "choice",
            "condition",
            ("x",),
            Program(("x",), (Op("flip", "neg", ("x",)),), ("flip",)),
            Program(("x",), (Op("clip", "relu", ("x",)),), ("clip",)),
        ),
    ),
    outputs=("choice",),
)

VIEWS = Program(
    inputs=("x",),
    steps=(Op("negated", "neg", ("x",)), Op("view", "flatten", ("negated",))),
    outputs=("view",),
)
