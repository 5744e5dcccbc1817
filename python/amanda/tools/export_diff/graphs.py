"""The operators of a call, and those of an exported program, as graphs that `Cover` reads."""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from .alignment import Alignment, Shape
from .arrays import Kept, Key
from .calls import Call, Ran
from .origins import Origin
from .results import Result

_REPEATED = re.compile(r"@\d+(?=\.|$)")  # the second call of a module


class Operator(NamedTuple):
    """A node, in ONNX's words. Names of values are the graph's own."""

    op_type: str
    input: tuple[str, ...]
    output: tuple[str, ...]
    attribute: tuple[Any, ...] = ()  # it has no bodies


class Operators(NamedTuple):
    """A graph."""

    node: list[Operator]


class Program:
    """The operators of a call. A value is made by the last operator before that returned these elements.

    Operators read no constants here, which depend on no argument and no parameter: equal ones are made again and again.
    """

    def __init__(self, call: Call) -> None:
        self._made: dict[Key, str] = {}
        arguments = {kept.key for some in call.arguments.values() for kept in some}
        self.flops = [ran.flops for ran in call.ran]  # by the node's position
        nodes = []
        for i, ran in enumerate(call.ran):
            reads = tuple(self._made[key] for key in ran.inputs if key in self._made)
            names = tuple(f"{i}:{position}" for position in range(len(ran.outputs)))
            nodes.append(Operator(ran.place.name, reads, names))
            if reads or ran.parameters or not arguments.isdisjoint(ran.inputs):
                made = zip(ran.outputs, names, strict=True)
                self._made.update((kept.key, name) for kept, name in made if kept is not None)
        self.graph = Operators(nodes)
        self._positions = {id(ran): i for i, ran in enumerate(call.ran)}

    def value_of(self, ran: Ran, kept: Kept) -> str:
        """The name of a result of an execution."""
        position = next(i for i, each in enumerate(ran.outputs) if each is kept)
        return f"{self._positions[id(ran)]}:{position}"

    def last(self, kept: Kept) -> str | None:
        """The name of the last value with these elements."""
        return self._made.get(kept.key)


class Exported:
    """A program of torch.export. `graph` has its operators.

    Arguments:
        program: a `torch.export.ExportedProgram`.
    """

    def __init__(self, program: Any) -> None:
        self._program = program
        nodes = [node for node in program.graph.nodes if node.op == "call_function" and not _is_member(node)]
        self.graph = Operators([_operator(node) for node in nodes])
        self._results = [
            (Result(each.name, _origin(node), i), each) for node in nodes for i, each in enumerate(_returned(node))
        ]

    def alignment(self, call: Call) -> Alignment:
        """Its values, and their counterparts in a call."""
        feeds = self._feeds(call)
        sizes = self._sizes(feeds)
        shapes = {result.name: shape for result, node in self._results if (shape := _shape(node, sizes)) is not None}
        return Alignment([result for result, _ in self._results], shapes, call, feeds)

    @property
    def operators(self) -> int:
        return len(self.graph.node)

    def _feeds(self, call: Call) -> dict[str, Kept]:
        """The tensors of the call by the names of the inputs, in their order; none if there are not as many."""
        asked = [name for name in self._program.graph_signature.user_inputs if isinstance(name, str)]
        inputs = [node for node in self._program.graph.nodes if node.op == "placeholder" and node.name in asked]
        names = [node.name for node in inputs if hasattr(node.meta.get("val"), "dtype")]
        given = [kept for some in call.arguments.values() for kept in some]
        return dict(zip(names, given, strict=True)) if len(names) == len(given) else {}

    def _sizes(self, feeds: Mapping[str, Kept]) -> dict[Any, int]:
        """The sizes that inputs decide, by their symbols."""
        return {
            size.node.expr: given
            for node in self._program.graph.nodes
            if node.name in feeds
            for size, given in zip(node.meta["val"].shape, feeds[node.name].shape, strict=False)
            if not isinstance(size, int)
        }


def _is_member(node: Any) -> bool:
    """True if it takes one of several results."""
    return node.target is operator.getitem


def _returned(node: Any) -> list[Any]:
    """The nodes whose values are its results."""
    return sorted(filter(_is_member, node.users), key=lambda each: each.args[1]) or [node]


def _operator(node: Any) -> Operator:
    names = dict.fromkeys([node.name, *(each.name for each in _returned(node))])
    return Operator(_name(node), tuple(each.name for each in node.all_input_nodes), tuple(names))


def _name(node: Any) -> str:
    schema = getattr(node.target, "_schema", None)
    return str(getattr(node.target, "__name__", node.target) if schema is None else schema.name)


def _origin(node: Any) -> Origin:
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    path = _REPEATED.sub("", str(stack[-1][0])) if stack else ""
    return Origin(node.name, _name(node), path, tuple(each.name for each in node.all_input_nodes), str(node.args))


def _shape(node: Any, sizes: Mapping[Any, int]) -> Shape | None:
    """None if it is no tensor, or the inputs do not decide its sizes."""
    value = node.meta.get("val")
    if not hasattr(value, "dtype"):
        return None
    found = []
    for size in value.shape:
        known = size if isinstance(size, int) else size.node.expr.subs(sizes)
        if not isinstance(known, int) and not known.is_Integer:
            return None
        found.append(int(known))
    kind = "b" if str(value.dtype) == "torch.bool" else "f" if value.dtype.is_floating_point else "i"
    return tuple(found), kind
