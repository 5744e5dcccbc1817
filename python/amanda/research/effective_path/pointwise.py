"""Pointwise operators, in which each output depends on one input: whether it grows with it or falls."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from torch import Tensor

from amanda import ops
from amanda.research.effective_path.synapses import Inputs

Slope = tuple[str, Tensor | float]
"""The name of the input, and a number of the sign with which the output depends on it."""

# The sign of an activation's output is that of the input, or constant; where it is zero, nothing passes.
activations = frozenset(
    name
    for name in ops.activation
    if name.removesuffix("_") not in ("prelu", "rrelu", "glu", "threshold", "hardshrink", "softshrink")
)


def _rising(inputs: Inputs, live: Collection[str]) -> Slope:
    return "self", 1.0


def _falling(inputs: Inputs, live: Collection[str]) -> Slope:
    return "self", -1.0


def _normalization(inputs: Inputs, live: Collection[str]) -> Slope:
    x, weight = inputs["input"], inputs["weight"]
    return "input", 1.0 if weight is None else weight.view(1, -1, *[1] * (x.dim() - 2))


def _scaling(inputs: Inputs, live: Collection[str]) -> Slope | None:
    if len(live) != 1:
        return None
    (source,) = live
    return source, inputs["other" if source == "self" else "self"]


def _quotient(inputs: Inputs, live: Collection[str]) -> Slope | None:
    return ("self", inputs["other"]) if set(live) == {"self"} else None


def _shift(inputs: Inputs, live: Collection[str]) -> Slope | None:
    if len(live) != 1:
        return None  # a sum of two
    (source,) = live
    return source, 1.0 if source == "self" else inputs["alpha"]


def _difference(inputs: Inputs, live: Collection[str]) -> Slope | None:
    found = _shift(inputs, live)
    return found if found is None or found[0] == "self" else (found[0], -found[1])


def _reverse_difference(inputs: Inputs, live: Collection[str]) -> Slope | None:
    found = _shift({**inputs, "alpha": 1.0}, live)
    return found if found is None or found[0] == "other" else ("self", -inputs["alpha"])


slopes: dict[str, Callable[[Any, Collection[str]], Slope | None]] = {
    **dict.fromkeys((name for name in activations if not name.endswith("_")), _rising),
    **dict.fromkeys(("softmax", "log_softmax"), _rising),
    "neg": _falling,
    "batch_norm": _normalization,
    "mul": _scaling,
    "div": _quotient,
    "add": _shift,
    "sub": _difference,
    "rsub": _reverse_difference,
}
"""Functions by an operator's name. They get its inputs and the names of those that depend on the sample, and return a
slope, or None if it is not pointwise."""
