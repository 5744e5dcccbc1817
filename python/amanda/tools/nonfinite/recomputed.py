"""Operators of TensorFlow that numpy computes again in float64, beyond the elementwise ones of `elementwise`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from amanda import OpContext

MOST_ELEMENTS = 1 << 22  # of operands of a product

Again = Callable[[Sequence[Any]], Any]


def again_of(context: OpContext) -> Again | None:
    """Computes the operator from arrays for all its inputs; None of an operator that it can't compute. It returns None for
    operands that are too large."""
    name = context.op.__name__
    if name in ("MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3"):
        return _product(*(_is_set(context, f"{attribute}") for attribute in _transposes(name)))
    if name in ("Sum", "Mean"):
        return _reduction(name, _is_set(context, "keep_dims"))
    if name == "BiasAdd" and context.attribute("data_format") == "NCHW":
        return None
    return _FUNCTIONS.get(name)


_FUNCTIONS: dict[str, Again] = {
    "Cast": lambda given: given[0],
    "Sub": lambda given: given[0] - given[1],
    "BiasAdd": lambda given: given[0] + given[1],
    "SquaredDifference": lambda given: (given[0] - given[1]) ** 2,
    "Pow": lambda given: given[0] ** given[1],
    "L2Loss": lambda given: (given[0] ** 2).sum() / 2,
}


def _transposes(name: str) -> tuple[str, str]:
    return ("transpose_a", "transpose_b") if name == "MatMul" else ("adj_x", "adj_y")


def _is_set(context: OpContext, attribute: str) -> bool:
    return context.attribute(attribute) == "True"


def _product(*transposed: bool) -> Again:
    def compute(given: Sequence[Any]) -> Any:
        if sum(math.prod(one.shape) for one in given) > MOST_ELEMENTS:
            return None
        a, b = (one.swapaxes(-1, -2) if is_set else one for one, is_set in zip(given, transposed, strict=True))
        return a @ b

    return compute


def _reduction(name: str, keeps: bool) -> Again:
    def compute(given: Sequence[Any]) -> Any:
        values, axes = given
        function = values.sum if name == "Sum" else values.mean
        return function(axis=tuple(axes.reshape(-1).tolist()), keepdims=keeps)

    return compute
