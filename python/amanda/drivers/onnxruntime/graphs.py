"""Graphs: the operators of a model, and those in the bodies of its If, Loop and Scan."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import onnx

from amanda.drivers.onnxruntime import protos
from amanda.drivers.onnxruntime.places import Place, Places

_WITH_BODIES = {"If": 1, "Loop": 1, "Scan": 9}  # the first version whose bodies are shown: Scan-8 has batches


class Operator(NamedTuple):
    node: Any
    id: int
    place: Place
    bodies: dict[str, Graph]  # by attribute; none of an operator whose bodies are not shown


class Graph(NamedTuple):
    """A graph, or a body: it gets values by its inputs, and captures others."""

    proto: Any
    operators: list[Operator]


def read(written: Any, optimized: Any, digest: str, versions: Mapping[str, int]) -> Graph:
    """The operators of an optimized graph, with their places in the written one.

    Arguments:
        digest: of the model. Ids are the same in each process that loads the same one.
        versions: of the operator sets in force, by domain.
    """
    return _read(written, optimized, (digest,), Place(), versions)


def _read(written: Any, optimized: Any, key: tuple[object, ...], around: Place, versions: Mapping[str, int]) -> Graph:
    places, operators = Places(written, optimized), []
    for node in optimized.node:
        id = _id_of((*key, node.op_type, node.name, list(node.output)))
        found = places.of(node)
        # Exporters write no modules into bodies: the operator around it is in the module that runs it.
        place = Place(found.module_path or around.module_path, found.source or around.source)
        source, bodies = places.written(node), {}
        if not node.domain and versions.get("", 1) >= _WITH_BODIES.get(node.op_type, 1 << 30):
            of_source = protos.bodies(source) if source is not None else {}
            for name, body in protos.bodies(node).items():
                bodies[name] = _read(of_source.get(name, onnx.GraphProto()), body, (id, name), place, versions)
        operators.append(Operator(node, id, place, bodies))
    return Graph(optimized, operators)


def _id_of(key: tuple[object, ...]) -> int:
    """Names of values are unique in a graph."""
    return int.from_bytes(hashlib.blake2b(repr(key).encode(), digest_size=8).digest(), "big") or 1
