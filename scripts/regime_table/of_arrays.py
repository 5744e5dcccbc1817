"""A program of a graph driver in Python, whose operands are arrays of numpy and whose names are those of PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from amanda import _core

from regime_table.program import Program, Regime, plain

BACKEND = _core.GraphBackend("arrays/1/graph", backward="one", can_replace=True)


class Kind(NamedTuple):
    """An operator type; `gradient(g, *inputs)` has the gradient of each input."""

    inputs: tuple[str, ...]
    run: Callable[..., Any]
    gradient: Callable[..., tuple[Any, ...]]


def _softmax(x: Any) -> Any:
    powers = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def _softmax_gradient(g: Any, x: Any) -> tuple[Any]:
    y = _softmax(x)
    return (y * (g - (g * y).sum(-1, keepdims=True)),)


KINDS = {
    "conv2d": Kind(  # of 1 by 1
        ("input", "weight"),
        lambda x, w: np.einsum("nihw,oiab->nohw", x, w),
        lambda g, x, w: (np.einsum("nohw,oiab->nihw", g, w), np.einsum("nohw,nihw->oi", g, x).reshape(w.shape)),
    ),
    "relu": Kind(("self",), lambda x: np.maximum(x, 0), lambda g, x: (g * (x > 0),)),
    "linear": Kind(
        ("input", "weight"),
        lambda x, w: x @ w.T,
        lambda g, x, w: (g @ w, g.reshape(-1, len(w)).T @ x.reshape(-1, w.shape[1])),
    ),
    "softmax": Kind(("self",), _softmax, _softmax_gradient),
    "matmul": Kind(("self", "other"), np.matmul, lambda g, a, b: (g @ b.swapaxes(-1, -2), a.swapaxes(-1, -2) @ g)),
}
TYPES = {
    name: BACKEND.intern("arrays", name, inputs=list(kind.inputs), outputs=["out"]) for name, kind in KINDS.items()
}
BACKWARD = {name: BACKEND.intern("arrays", f"{name.title()}Backward") for name in KINDS}
GRAPH = [
    ("conv2d", ("x", "w1"), "h1"),
    ("relu", ("h1",), "h2"),
    ("linear", ("h2", "w2"), "h3"),
    ("softmax", ("h3",), "h4"),
    ("matmul", ("h4", "h3"), "y"),
]
CACHE = _core.ArtifactCache()


class Site:
    """The graph, as the driver shows it."""

    def __init__(self) -> None:
        self.sites: list[tuple[Any, Any]] = []

    def each_op(self, visitor: Any) -> None:
        for number, (name, inputs, output) in enumerate(GRAPH, 1):
            site = _core.OpSite(BACKEND, TYPES[name], number, inputs, (output,), module_path=output)
            grads = tuple("d" + each for each in inputs)
            backward = _core.OpSite(BACKEND, BACKWARD[name], 100 + number, ("d" + output,), grads, forward=site)
            self.sites.append((site, backward))
            visitor.op(site)
            visitor.op(backward)

    def lower(self, taps: list[tuple[int, list[Any]]]) -> list[Any]:
        found = dict(taps)
        return [(*sites, found.get(2 * i, ()), found.get(2 * i + 1, ())) for i, sites in enumerate(self.sites)]


def run(values: dict[str, Any]) -> dict[str, Any]:
    """Forward, and then backward from the sum of the result: all values and gradients."""
    toolset = BACKEND.toolset()
    artifact = toolset and CACHE.get(toolset, "graph", BACKEND, Site())
    steps = artifact.lowered if artifact and artifact.lowered is not None else [(None, None, (), ())] * len(GRAPH)
    tape: list[tuple[Any, Any]] = []
    for (name, names, output), (site, _, taps, _) in zip(GRAPH, steps, strict=True):
        state = _core.RunState()
        inputs, outputs = _tapped(taps, site, KINDS[name].run, [values[each] for each in names], state)
        values[output] = outputs[0]
        tape.append((inputs, state))
    values["dy"] = np.ones_like(values["y"])
    for (name, names, output), (_, site, _, taps), (inputs, state) in reversed(
        list(zip(GRAPH, steps, tape, strict=True))
    ):
        gradient = KINDS[name].gradient
        _, grads = _tapped(taps, site, lambda g: gradient(g, *inputs), [values["d" + output]], state)  # noqa: B023
        for each, grad in zip(names, grads, strict=True):
            values["d" + each] = values.get("d" + each, 0) + grad
    return values


def _tapped(
    taps: Sequence[Any], site: Any, function: Callable[..., Any], inputs: Sequence[Any], state: Any
) -> tuple[Sequence[Any], Sequence[Any]]:
    outputs: Sequence[Any] | None = None
    for tap in taps:
        if tap.point == "before":
            inputs = tap.run(site, inputs, state=state)
        elif tap.point == "replace":
            outputs = tap.run(site, inputs, original=function, state=state)
        else:
            outputs = tap.run(site, (), outputs or _several(function(*inputs)), state=state)
    return inputs, outputs or _several(function(*inputs))


def _several(value: Any) -> Sequence[Any]:
    return value if isinstance(value, tuple) else (value,)


def _program(network: str) -> Program:
    random = np.random.default_rng(0)
    shapes = {"w1": (2, 2, 1, 1), "w2": (4, 4)}
    weights = {name: random.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    x = random.normal(size=(1, 2, 4, 4)).astype(np.float32)
    return Program(run, lambda x: run({"x": x, **weights}), x, lambda result: None)


REGIMES = {"arrays of numpy": Regime(plain(_program))}
