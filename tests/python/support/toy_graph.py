"""A graph framework in Python, and its driver: scalars, two operators, reverse mode after instrumentation."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from amanda import _core

BACKEND = _core.GraphBackend("toy/1/graph", backward="one")
MUL = BACKEND.intern("toy", "mul", inputs=["a", "b"], outputs=["result"])
SIN = BACKEND.intern("toy", "sin", inputs=["a"], outputs=["result"])
MUL_BACKWARD = BACKEND.intern("toy", "MulBackward")
SIN_BACKWARD = BACKEND.intern("toy", "SinBackward")


class Node(NamedTuple):
    name: str
    type: int
    backward_type: int
    inputs: tuple[str, ...]
    run: Callable[..., float]
    gradient: Callable[..., tuple[float, ...]]


#: sin(x * w)
PROGRAM = [
    Node("first", MUL, MUL_BACKWARD, ("x", "w"), lambda a, b: a * b, lambda g, a, b: (g * b, g * a)),
    Node("wave", SIN, SIN_BACKWARD, ("first",), math.sin, lambda g, a: (g * math.cos(a),)),
]


class Step(NamedTuple):
    """A node with its taps, and those of its backward operator."""

    node: Node
    site: Any = None
    backward_site: Any = None
    taps: Sequence[Any] = ()
    backward_taps: Sequence[Any] = ()


VANILLA = [Step(node) for node in PROGRAM]


class Graph:
    """As the driver shows it. `refuse`: of all operators; `fail`: what lower() raises."""

    def __init__(self, refuse: Callable[[str, int], str | None] | None = None, fail: BaseException | None = None):
        self.refuse, self.fail, self.lowered = refuse, fail, 0
        self.sites: list[tuple[Any, Any]] = []

    def each_op(self, visitor: Any) -> None:
        for i, node in enumerate(PROGRAM):
            site = _core.OpSite(
                BACKEND, node.type, 100 + i, node.inputs, (node.name,), module_path=node.name, refuse=self.refuse
            )
            grads = tuple("d" + name for name in node.inputs)
            backward = _core.OpSite(BACKEND, node.backward_type, 200 + i, ("d" + node.name,), grads, forward=site)
            self.sites.append((site, backward))
            visitor.op(site)
            visitor.op(backward)  # as it will be made

    def lower(self, sites: list[tuple[int, list[Any]]]) -> list[Step]:
        self.lowered += 1
        if self.fail:
            raise self.fail
        taps = dict(sites)
        return [
            Step(node, *self.sites[i], taps.get(2 * i, ()), taps.get(2 * i + 1, ())) for i, node in enumerate(PROGRAM)
        ]


def _inserted(taps: Sequence[Any], point: str) -> list[Any]:
    return [tap for tap in taps if tap.point == point]


def execute(steps: list[Step], x: float, w: float) -> tuple[float, float]:
    """The result, and its gradient by `w`. Gradients pass straight through taps."""
    values, tape = {"x": x, "w": w}, []
    for step in steps:
        node = step.node
        inputs: Sequence[Any] = [values[name] for name in node.inputs]
        for tap in _inserted(step.taps, "before"):
            inputs = tap.run(step.site, inputs)
        outputs = [None]
        for tap in _inserted(step.taps, "replace"):
            outputs = tap.run(step.site, inputs, original=node.run)
        if not _inserted(step.taps, "replace"):
            outputs = [node.run(*inputs)]
        for tap in _inserted(step.taps, "after"):
            outputs = tap.run(step.site, (), outputs)
        values[node.name] = outputs[0]
        tape.append((step, inputs))
    gradients = {steps[-1].node.name: 1.0}
    for step, inputs in reversed(tape):
        grad_outputs: Sequence[Any] = [gradients[step.node.name]]
        for tap in _inserted(step.backward_taps, "before"):
            grad_outputs = tap.run(step.backward_site, grad_outputs)
        grad_inputs: Sequence[Any] = step.node.gradient(grad_outputs[0], *inputs)
        for tap in _inserted(step.backward_taps, "after"):
            grad_inputs = tap.run(step.backward_site, (), grad_inputs)
        for name, gradient in zip(step.node.inputs, grad_inputs, strict=True):
            gradients[name] = gradients.get(name, 0.0) + gradient
    return values[steps[-1].node.name], gradients["w"]


class Function:
    """A program with the framework's own cache, which has the toolset in its key."""

    def __init__(self) -> None:
        self.cache: dict[Any, Any] = {}
        self.builds = 0

    def __call__(self, x: float, w: float) -> tuple[float, float]:
        toolset = BACKEND.toolset()
        if toolset is None:
            return execute(VANILLA, x, w)
        if toolset not in self.cache:
            self.builds += 1
            self.cache[toolset] = _core.instrument(toolset, BACKEND, Graph())
        artifact = self.cache[toolset]
        return execute(VANILLA if artifact.lowered is None else artifact.lowered, x, w)
