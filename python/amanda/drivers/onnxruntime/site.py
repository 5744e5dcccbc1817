"""Site: the operators of a session, shown to tools. See amanda::GraphSite."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping
from typing import Any, NamedTuple

from amanda import _core
from amanda.drivers.onnxruntime import coverage, kinds, op_types, protos
from amanda.drivers.onnxruntime.chain import Chain
from amanda.drivers.onnxruntime.graphs import Graph, Operator
from amanda.drivers.onnxruntime.op_types import BACKEND
from amanda.drivers.onnxruntime.program import Program, Unreadable, first_line
from amanda.drivers.onnxruntime.unsupported import warn


class ShownBody(NamedTuple):
    proto: Any
    shown: list[Shown]

    @property
    def outputs(self) -> list[str]:
        return [each.name for each in self.proto.output]


class Shown(NamedTuple):
    """An operator."""

    number: int  # in the order in which they are shown
    node: Any
    inputs: tuple[Any, ...]  # names by position: "" where none is given, a tuple for a variadic position
    outputs: tuple[Any, ...]
    site: _core.OpSite
    bodies: dict[str, ShownBody]

    def inside(self) -> list[int]:
        """The numbers of the operators in its bodies, and in theirs."""
        return [found for body in self.bodies.values() for op in body.shown for found in (op.number, *op.inside())]


class Site:
    """The graph of a session, from which a run takes some outputs."""

    def __init__(self, program: Program, outputs: tuple[str, ...]) -> None:
        self._program, self._outputs = program, outputs
        self._shown: list[Shown] = []

    def each_op(self, visitor: _core.GraphVisitor) -> None:
        versions = op_types.versions_of(self._program.model)
        self._count = itertools.count()
        self._shown = self._show(self._program.graph, versions, visitor)

    def _show(self, graph: Graph, versions: Mapping[str, int], visitor: _core.GraphVisitor) -> list[Shown]:
        return [self._show_one(operator, versions, visitor) for operator in graph.operators]

    def _show_one(self, operator: Operator, versions: Mapping[str, int], visitor: _core.GraphVisitor) -> Shown:
        node, place = operator.node, operator.place
        schema = op_types.schema_of(node, versions)
        type = op_types.type_of(node, schema)
        inputs = op_types.arranged(schema.inputs, list(node.input), schema.takes_many)
        outputs = op_types.arranged(schema.outputs, list(node.output), schema.gives_many)
        site = _core.OpSite(
            BACKEND,
            type,
            operator.id,
            tuple(map(self._symbols, inputs)),
            tuple(map(self._symbols, outputs)),
            module_path=place.module_path,
            source=place.source,
            refuse=functools.partial(self._refusal, inputs, outputs),
            attribute=lambda name: protos.attributes(node).get(name),
        )
        number = next(self._count)
        coverage.shown(BACKEND, op_types.full_name(node), type)
        visitor.op(site)
        if not operator.bodies:
            self._skip_bodies(node, versions, visitor)
        bodies = {
            name: ShownBody(body.proto, self._show(body, versions, visitor)) for name, body in operator.bodies.items()
        }
        return Shown(number, node, inputs, outputs, site, bodies)

    def _skip_bodies(self, node: Any, versions: Mapping[str, int], visitor: _core.GraphVisitor) -> None:
        inside = protos.inside(node)
        if not inside:
            return
        visitor.unseen(node.name, f"the bodies of {node.op_type}: their {len(inside)} operators are not shown")
        if any(BACKEND.wants(op_types.type_of(each, op_types.schema_of(each, versions))) for each in inside):
            warn(f"a model has an operator {node.op_type}: tools are not shown the operators in its bodies")
        for each in inside:
            coverage.skipped(op_types.full_name(each))

    def lower(self, sites: list[tuple[int, list[_core.Tap]]]) -> Chain | None:
        try:
            return Chain(self._program, self._shown, dict(sites), self._outputs)
        except Unreadable as why:
            warn(f"a session runs without tools: {why}")
        except Exception as error:  # no reason to end a program
            warn(f"a session runs without tools: its graph can't be cut ({type(error).__name__}: {first_line(error)})")
        return None

    def _symbols(self, names: Any) -> Any:
        return [self._program.value(each) for each in names] if isinstance(names, tuple) else self._program.value(names)

    def _refusal(self, inputs: tuple[Any, ...], outputs: tuple[Any, ...], point: str, position: int) -> str | None:
        sides = {"before": inputs[position : position + 1], "after": outputs[position : position + 1]}
        for name in _flat(sides.get(point, (*inputs, *outputs))):
            if name and kinds.dtype_of(self._program.kind_of(name)) is None:
                return f"{name!r} is no tensor that numpy has, as sequences and bfloat16 are not"
        return None


def _flat(names: Any) -> list[str]:
    return [one for each in names for one in (each if isinstance(each, tuple) else (each,))]
