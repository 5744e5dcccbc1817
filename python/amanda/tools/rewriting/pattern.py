"""Patterns: which operators a rewriting rule replaces, and how they are connected."""

from __future__ import annotations

import fnmatch
import types
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

from amanda import Operator
from amanda.toolkit.operators import complaint

Names = str | Sequence[str]
Pattern = Sequence[Names] | Mapping[str, Any]
"""A chain, or a graph by labels: see `SubgraphRewriting`."""


class Step(NamedTuple):
    """One operator of a pattern."""

    ops: tuple[str, ...]  # any of these names
    inputs: tuple[int | None, ...]  # by position: the step whose result it is; None, and further ones: from outside

    def __str__(self) -> str:
        return " or ".join(self.ops)

    def matches(self, op: Operator) -> bool:
        spellings = [each + end for each in (op.name, op.__name__) for end in ("", f".{op.overload}")]
        return any(fnmatch.fnmatchcase(spelling, name) for spelling in spellings for name in self.ops)


def parse(pattern: Any) -> list[Step]:
    """The steps of a pattern, each after those that it consumes.

    Raises:
        TypeError: it is neither a list nor a dict.
        ValueError: it can match nothing.
    """
    if isinstance(pattern, str) or not isinstance(pattern, Sequence | Mapping):
        raise TypeError(f'[rewriting] a pattern is a list such as ["linear", "gelu"], or a dict, got {pattern!r}')
    if not pattern:
        raise ValueError('[rewriting] an empty pattern matches nothing; write a list such as ["linear", "gelu"]')
    if not isinstance(pattern, Mapping):
        pattern = {number: (ops, number - 1) if number else (ops,) for number, ops in enumerate(pattern)}
    labels = list(pattern)
    steps = [_step(label, pattern[label], labels[:number]) for number, label in enumerate(labels)]
    used = {made for step in steps for made in step.inputs}
    for number, step in enumerate(steps[:-1]):
        if number not in used:
            raise ValueError(
                f"[rewriting] the pattern is not connected: no later operator takes the result of {labels[number]!r} "
                f"({step}); the last one, {labels[-1]!r}, must depend on all others"
            )
    return steps


def _step(label: str | int, entry: Any, earlier: list[str | int]) -> Step:
    ops, *inputs = (entry,) if isinstance(entry, str) or not entry else entry
    names = tuple(ops) if isinstance(ops, list | tuple) else (ops,)
    if not names or not all(isinstance(name, str) and name for name in names):
        raise ValueError(f"[rewriting] {label!r} of the pattern has no operator's name: {entry!r}")
    for name in names:
        plain = name.rpartition("::")[2].partition(".")[0]
        if plain.endswith("_") and not plain.startswith("__"):
            raise ValueError(
                f"[rewriting] {name!r} works in place, and other tensors see what it writes; end the pattern before it"
            )
        if why := complaint(name):
            raise ValueError(f"[rewriting] the pattern matches nothing: {why}")
    for made in inputs:
        if made is not None and made not in earlier:
            raise ValueError(
                f"[rewriting] {label!r} takes the result of {made!r}, which is no earlier operator of the pattern "
                f"({', '.join(map(repr, earlier)) or 'it is the first'}); None is an input from outside, and "
                f'alternatives are a tuple of their own: (("mul", "div"), ...)'
            )
    return Step(names, tuple(None if made is None else earlier.index(made) for made in inputs))


class Operands(types.SimpleNamespace):
    """The inputs of one operator of a match that come from outside the match, by the names of the schema.

    ``op`` is the operator: ``op.__name__`` is "div", and calling it runs the original.
    """

    def __init__(self, op: Operator, values: Sequence[Any], inside: set[int]) -> None:
        named = enumerate(zip(op.input_names, values, strict=True))
        super().__init__(op=op, **{name: value for position, (name, value) in named if position not in inside})

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(
            f"[rewriting] {vars(self)['op'].name} has no input {name!r} from outside the match; it has "
            f"{', '.join(key for key in vars(self) if key != 'op') or 'none'}",
            name=name,
            obj=self,
        )
