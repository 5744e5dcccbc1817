"""Matches: which operators of a program are those of a pattern, and what runs in their place."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from amanda import Error, Operator
from amanda.toolkit.frames import short_line
from amanda.toolkit.places import Place
from amanda.tools.graph import Graph, Node

from .deferred import Deferred, Key, Pending, Result, storages_of
from .pattern import Operands, Step


@dataclasses.dataclass(eq=False)
class Site:
    """An operator of the program that a pattern names."""

    op: Operator
    op_id: int
    place: Place
    writes: Sequence[int]  # positions of inputs that it may write to, though its schema calls them read-only
    results: dict[Key, Result] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(eq=False)
class Rule:
    steps: Sequence[Step]
    function: Callable[..., Any]
    found: bool = False
    warned: bool = False
    nearest: tuple[int, str] = (0, "")  # of the best candidate: how many operators fit, and why it is no match

    def __str__(self) -> str:
        return " > ".join(map(str, self.steps))


@dataclasses.dataclass(eq=False)
class Match:
    rule: Rule
    sites: Sequence[Site]  # in the order of the pattern
    rewritten: int = 0
    kept: int = 0
    why: str = ""  # it is not rewritten any more
    pauses: bool = False  # the last operator could not be replaced when it last ran, as batch normalization in training

    def __str__(self) -> str:
        return " > ".join(site.place.name for site in self.sites)

    def stop(self, why: str) -> None:
        self.why = self.why or why

    def can_rewrite(self, number: int, result: Result) -> bool:
        """True if this operator may be skipped, or replaced, when it returns such a result."""
        possible = not self.why and result.pure and result.shares <= self.inside(number)
        if number == len(self.sites) - 1:
            self.pauses = not possible
        return possible and not self.pauses

    def inside(self, number: int) -> set[int]:
        """The positions of an operator's inputs that the match makes."""
        return {position for position, made in enumerate(self.rule.steps[number].inputs) if made is not None}

    def parts(self, number: int, inputs: Sequence[Any]) -> dict[int, Pending] | None:
        """The pending operators behind an operator's inputs; None if the inputs are not those of one execution."""
        parts: dict[int, Pending] = {}
        for value, made in zip(inputs, self.rule.steps[number].inputs, strict=False):
            if made is None:
                continue
            if type(value) is not Deferred or (value.pending.match, value.pending.number) != (self, made):
                return None
            for part, pending in {**value.pending.parts, made: value.pending}.items():
                if pending.is_computed or parts.setdefault(part, pending) is not pending:
                    return None
        return parts

    def rewrite(self, last: Pending, expected: Result) -> Any:
        """The function's result for the match that ends in this operator."""
        pending = {**last.parts, last.number: last}
        steps = enumerate(self.rule.steps)
        operands = [Operands(pending[at].op, pending[at].inputs, self.inside(at)) for at, _ in steps]
        result = self.rule.function(*operands)
        if result is NotImplemented:
            return result
        for each in pending.values():
            each.check()
        self._check(result, expected, storages_of(value for each in pending.values() for value in each.inputs))
        return result

    def _check(self, result: Any, expected: Result, outside: set[int]) -> None:
        function = getattr(self.rule.function, "__name__", self.rule.function)
        if not isinstance(result, torch.Tensor):
            problem = f"returned {type(result).__name__}; return a tensor, or NotImplemented to run what is written"
        elif not expected.is_like(result):
            found, wanted = (f"{each.dtype} {list(each.shape)} on {each.device}" for each in (result, expected))
            problem = f"returned {found}; the program computes {wanted}"
        elif expected.requires_grad and not result.requires_grad:
            problem = "returned a tensor without a gradient; what the program computes has one"
        elif storages_of([result]) & outside:
            problem = "returned a tensor that shares memory with an input; return result.clone()"
        else:
            return
        raise Error(f"[rewriting] {function}, in place of {self} ({where(self.sites[-1].place)}), {problem}")


def where(place: Place | Node) -> str:
    return ", ".join(filter(None, (place.module_path, short_line(place.source))))


def find(rule: Rule, last: Node, graph: Graph, sites: Mapping[Any, Site]) -> list[Site] | None:
    """The operators of the match that ends in `last`, among those of `sites`; None, and `rule.nearest`, if it is none."""
    bound: dict[int, Node] = {}
    problem = _bind(rule, len(rule.steps) - 1, last, graph, sites, bound) or _leak(rule, graph, bound)
    if problem is None:
        return [sites[bound[number].id] for number in range(len(rule.steps))]
    rule.nearest = max(rule.nearest, (len(bound), problem), key=lambda each: each[0])
    return None


def _bind(
    rule: Rule, number: int, node: Node, graph: Graph, sites: Mapping[Any, Site], bound: dict[int, Node]
) -> str | None:
    """Takes `node` for a step of the pattern, and its producers for those before. Returns the reason if it cannot."""
    step = rule.steps[number]
    if number in bound or node in bound.values():
        return None if bound.get(number) is node else f"{_text(node)} would be two operators of the pattern"
    if node.id not in sites or not step.matches(sites[node.id].op):
        return f"{_text(node)} is not {step}, or is in another match, writes in place or returns several values"
    bound[number] = node
    for position, made in enumerate(step.inputs):
        if made is None:
            continue
        producers = [producer for producer, at in graph.producers(node).items() if position in at]
        if len(producers) != 1:
            return f"input {position} of {_text(node)} is written to by several operators"
        problem = _bind(rule, made, producers[0], graph, sites, bound)
        if problem is not None:
            return problem
    return None


def _leak(rule: Rule, graph: Graph, bound: Mapping[int, Node]) -> str | None:
    """The result inside the match that is used in another way than in the pattern; None if there is none."""
    for number, node in bound.items():
        inside = {
            bound[taker]: [position for position, made in enumerate(step.inputs) if made == number]
            for taker, step in enumerate(rule.steps)
            if number in step.inputs
        }
        if number == len(rule.steps) - 1:
            continue
        for consumer, positions in graph.consumers(node).items():
            if inside.get(consumer) != positions:
                return f"the result of {_text(node)} also goes to {_text(consumer)}"
    return None


def _text(node: Node) -> str:
    return f"{node.name} ({where(node)})"
