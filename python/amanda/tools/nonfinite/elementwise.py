"""Operators of graphs, computed again in float64: why a result is not finite. For arrays of any framework."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from amanda.toolkit import Arrays
from amanda.toolkit.arrays import arrays_of

MOST_ELEMENTS = 1 << 24

_FUNCTIONS = {
    **{name: name for name in ("exp", "expm1", "sinh", "cosh", "square")},
    **{"addv2": "add", "mul": "multiply", "div": "divide", "realdiv": "divide"},
}
"""By operators of PyTorch and TensorFlow, in small letters: functions of torch and numpy. None of them has other operands,
such as `alpha`."""


def cause_of(
    name: str,
    result: Any,
    bad: Any,
    inputs: Sequence[tuple[str, Any]],
    arrays: Arrays,
    compute: Callable[[Sequence[Any]], Any] | None = None,
) -> str:
    """The cause in words; "" if none is confirmed, or the operator is not known. `bad`: where the result is not finite;
    `compute`: computes an operator that is not elementwise, of which some inputs may be integers."""
    xp = arrays.xp
    if (name not in _FUNCTIONS and compute is None) or math.prod(result.shape) > MOST_ELEMENTS:
        return ""
    if not all(operand.startswith("input ") and arrays_of(value) is arrays for operand, value in inputs):
        return ""  # of a backward operator, or with a number
    are_floating = [arrays.is_floating(value) for _, value in inputs]
    if not (any(are_floating) if compute is not None else all(are_floating)):
        return ""
    wide = [
        arrays.cast(value, xp.float64) if is_real else value
        for (_, value), is_real in zip(inputs, are_floating, strict=True)
    ]
    are_infinite = [xp.isinf(value) for value in wide]
    finite = [xp.where(at, xp.zeros_like(value), value) for at, value in zip(are_infinite, wide, strict=True)]
    with arrays.quietly():
        again = compute(finite) if compute is not None else getattr(xp, _FUNCTIONS[name])(*finite)
    if again is None:
        return ""
    if again.shape != result.shape or not bool(xp.isfinite(again[bad]).all()):
        return ""
    for (operand, value), at in zip(inputs, are_infinite, strict=True):
        if bool(at.any()):
            return f"{operand} is infinite at {int(at.sum())} of {math.prod(value.shape)} elements"
    largest, dtype = float(abs(again[bad]).max()), str(result.dtype).removeprefix("torch.")
    limit = _LIMITS.get(dtype, math.inf)
    ends = f"; {dtype} ends at {limit:.4g}" if largest > limit else ""
    return f"in float64 the result is finite, as large as {largest:.4g}{ends}"


_LIMITS = {"float16": 65504.0, "float32": 3.4028235e38, "bfloat16": 3.3895314e38}
