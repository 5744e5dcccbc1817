"""Result: a value of the file that an operator of the exported program returns."""

from __future__ import annotations

import collections
import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from .origins import Origin, origin_of

_MEMBER = re.compile(r"getitem(_\d+)?")  # the FX node that takes one of several results


class Result(NamedTuple):
    """A value of the file."""

    name: str
    origin: Origin
    position: int  # among the results of its operator that the file has


def results_of(graph: Any) -> list[Result]:
    """The results of the exported program's operators that have a value in the file, in the order of its nodes.

    Several nodes may compute one operator. Their last value has the name of the FX node, or of the FX nodes that take
    its members.
    """
    groups: dict[str, list[Any]] = {}
    origins: dict[str, Origin] = {}
    for node in graph.node:
        origin = origin_of(node)
        if origin is not None:
            origins.setdefault(origin.name, origin)
            groups.setdefault(origin.name, []).append(node)
    outside = _read_outside(graph)
    found = []
    for fx, nodes in groups.items():
        names = [name for node in nodes for name in node.output if name]
        returned = [name for name in names if name == fx] or [
            name for name in names if (fx, name) in outside and _is_member(name, fx)
        ]
        found += [Result(name, origins[fx], i) for i, name in enumerate(returned or names[-1:])]
    return found


def _is_member(name: str, fx: str) -> bool:
    return bool(_MEMBER.fullmatch(name)) or name.startswith(f"{fx}_")


def _read_outside(graph: Any) -> set[tuple[str, str]]:
    """Pairs of an operator and a value: others read the value, or it is an output of the graph."""
    maker = {name: origin.name for node in graph.node if (origin := origin_of(node)) for name in node.output if name}
    found = {(maker[each.name], each.name) for each in graph.output if each.name in maker}
    for node in graph.node:
        origin = origin_of(node)
        for name in reads(node):
            if name in maker and (origin is None or origin.name != maker[name]):
                found.add((maker[name], name))
    return found


def reads(node: Any) -> list[str]:
    """The values that a node gets from around it, with those that its bodies capture: of an If, a Loop, a Scan."""
    return [name for name in (*node.input, *(name for body in bodies(node) for name in _captured(body))) if name]


def bodies(node: Any) -> list[Any]:
    """The graphs in a node's attributes."""
    return [each.g for each in node.attribute if each.HasField("g")]


def _captured(body: Any) -> Iterator[str]:
    own = {each.name for each in (*body.input, *body.initializer)} | {
        name for node in body.node for name in node.output
    }
    for node in body.node:
        yield from (name for name in reads(node) if name not in own)
    yield from (each.name for each in body.output if each.name not in own)


class Cover:
    """The nodes between values: those that compute a value from the nearest ones before it."""

    def __init__(self, graph: Any) -> None:
        self._nodes = list(graph.node)
        self._maker = {name: i for i, node in enumerate(self._nodes) for name in node.output if name}

    def between(self, name: str, ends: Iterable[str]) -> list[int]:
        """The positions of the nodes that compute this value from `ends`, in the order of the graph."""
        ends, waiting, found = set(ends), [name], set()
        while waiting:
            i = self._maker.get(waiting.pop())
            if i is not None and i not in found:
                found.add(i)
                waiting += [each for each in reads(self._nodes[i]) if each not in ends]
        return sorted(found)

    def read_by(self, positions: Iterable[int]) -> set[str]:
        """The values that these nodes read."""
        return {name for i in positions for name in reads(self._nodes[i])}

    def node(self, i: int) -> Any:
        return self._nodes[i]

    def __len__(self) -> int:
        return len(self._nodes)


def outputs_by_reader(graph: Any) -> dict[str, list[Any]]:
    """The nodes that read each value."""
    found: dict[str, list[Any]] = collections.defaultdict(list)
    for node in graph.node:
        for name in reads(node):
            found[name].append(node)
    return found
