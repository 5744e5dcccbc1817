"""Rules: the elements of operands for which operators have no finite result. They are for arrays of any framework."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from amanda.toolkit.arrays import arrays_of, known

from . import elementwise


class Rule(NamedTuple):
    """No operator of this name has a finite result where `holds` for an operand's elements."""

    operand: str
    what: str
    holds: Callable[[Any], Any]


def _zero(operand: str) -> Rule:
    return Rule(operand, "is zero", lambda v: v == 0)


def _negative(operand: str) -> Rule:
    return Rule(operand, "is negative", lambda v: v < 0)


def _below(limit: float) -> Rule:
    return Rule("input self", f"is less than {limit:g}", lambda v: v < limit)


def _is(value: float) -> Rule:
    return Rule("input self", f"is {value:g}", lambda v: v == value)


def _outside(limit: float) -> Rule:
    return Rule("input self", f"is outside of [{-limit:g}, {limit:g}]", lambda v: abs(v) > limit)


def _each(rules: list[Rule], *names: str) -> dict[str, list[Rule]]:
    return dict.fromkeys(names, rules)


_LOG = [_negative("input self"), _zero("input self")]
_DIVISION = [_zero("input other")]
RULES: dict[str, list[Rule]] = {
    **_each(_DIVISION, "div", "divide", "true_divide", "floor_divide", "remainder", "fmod"),
    **_each(_LOG, "log", "log2", "log10", "rsqrt"),
    "sqrt": [_negative("input self")],
    "xlogy": [_negative("input other")],
    "log1p": [_below(-1), _is(-1)],
    "reciprocal": [_zero("input self")],
    **_each([_outside(1)], "asin", "acos", "arcsin", "arccos"),
    **_each([_outside(1), _is(1), _is(-1)], "atanh", "arctanh"),
    **_each([_below(1)], "acosh", "arccosh"),
    "SqrtBackward0": [_zero("saved result")],
    **_each([_zero("saved self")], "LogBackward0", "Log2Backward0", "Log10Backward0"),
    "DivBackward0": [_zero("saved other")],
    **_each(
        [Rule("saved self", "is 1 or -1", lambda v: abs(v) == 1)],
        "AcosBackward0",
        "AsinBackward0",
        "AtanhBackward0",
        "AcoshBackward0",
        "ErfinvBackward0",
    ),
    "addcdiv": [_zero("input tensor2")],
    **_each([_zero("saved self")], "PowBackward0", "PowBackward1"),
    "Log1PBackward0": [Rule("saved self", "is -1", lambda v: v == -1)],
}
"""The rules, by the operator's name without namespace, or by that of the autograd node."""


def text_of_cause(text: str, holds: Any, bad: Any) -> str:
    """The text of a cause. `holds`: where the rule holds; `bad`: where the result is not finite. "" if there is no such
    place."""
    confirmed, count = int((holds & bad).sum()), int(bad.sum())
    if not confirmed:
        return ""
    return text if confirmed == count else f"{text} at {confirmed} of {count} elements of the result"


_TENSORFLOW = {
    "realdiv": "div",
    "truncatediv": "div",
    "floordiv": "floor_divide",
    "mod": "remainder",
    "inv": "reciprocal",
}
_OPERANDS = {"input x": "input self", "input y": "input other"}


_ZERO, _ONE = _zero(""), Rule("", "is 1 or -1", lambda v: abs(v) == 1)
_SAVED = {
    "Sqrt": ("output 0", _ZERO),
    **dict.fromkeys(("Log", "Rsqrt", "Reciprocal", "Inv", "Pow"), ("input x", _ZERO)),
    **dict.fromkeys(("RealDiv", "Div"), ("input y", _ZERO)),
    **dict.fromkeys(("Acos", "Asin", "Atanh", "Acosh", "Erfinv"), ("input x", _ONE)),
    "Log1p": ("input x", Rule("", "is -1", lambda v: v == -1)),
}
"""By operator of TensorFlow: the operand for which the derivative is not finite where the rule holds."""


def saved_in_graph(name: str, operands: Iterable[tuple[str, Any]]) -> tuple[str, Any] | None:
    """The text of such a rule, and where it holds; None if it holds nowhere. `operands`: those of the forward operator."""
    operand, rule = _SAVED.get(name, ("", _ZERO))
    value = dict(operands).get(operand) if operand else None
    arrays = arrays_of(value)
    if arrays is None or not arrays.is_floating(value):
        return None
    holds = rule.holds(value)
    return (f"forward {operand} {rule.what}", holds) if bool(holds.any()) else None


def cause_of_saved(saved: tuple[str, Any], result: Any, inputs: Iterable[tuple[str, Any]], inf: bool) -> str:
    """The cause in words of a backward operator's result. `saved`: of `saved_in_graph`."""
    text, holds = saved
    xp = known(result).xp
    if holds.shape != result.shape:
        return ""
    bad = ~xp.isfinite(result) if inf else xp.isnan(result)
    gradient: Any = dict(inputs).get("grad_output 0")
    if arrays_of(gradient) is not None and gradient.shape == result.shape:
        bad = bad & xp.isfinite(gradient)
    return text_of_cause(text, holds, bad)


def cause_in_graph(
    name: str,
    result: Any,
    inputs: Sequence[tuple[str, Any]],
    inf: bool,
    compute: Callable[[Sequence[Any]], Any] | None = None,
) -> str:
    """The cause in words, as far as a rule confirms it, of an operator of TensorFlow or of a compiled function. `compute`:
    see `elementwise`."""
    arrays = arrays_of(result)
    if arrays is None:
        return ""
    xp = arrays.xp
    bad = ~xp.isfinite(result) if inf else xp.isnan(result)
    key = name.casefold().strip("_")
    for rule in RULES.get(_TENSORFLOW.get(key, key), ()):
        for operand, value in inputs:
            if (
                _OPERANDS.get(operand, operand) != rule.operand
                or arrays_of(value) is not arrays
                or arrays.is_complex(value)
            ):
                continue
            try:
                holds = xp.broadcast_to(rule.holds(value), tuple(result.shape))
            except (RuntimeError, ValueError):
                continue
            if text := text_of_cause(f"{operand} {rule.what}", holds, bad):
                return text
    return elementwise.cause_of(key, result, bad, inputs, arrays, compute)
