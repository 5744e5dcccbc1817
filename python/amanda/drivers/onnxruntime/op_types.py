"""Types of operators and the names of their positions, from ONNX Runtime's own schemas."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from amanda import _core
from amanda.drivers.onnxruntime import port, protos
from amanda.drivers.onnxruntime.value import describe, parameter_name

BACKEND = _core.GraphBackend(f"onnxruntime/{port.VERSION}/graph", can_replace=True, both_sides=True)
BACKEND.describe(describe)
BACKEND.name_parameters(parameter_name)

_DEFAULT = "onnx"  # the namespace of operators of the default domain, which has no name


class Schema(NamedTuple):
    """The names of an operator's positions; the last one may stand for several values."""

    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    takes_many: bool = False
    gives_many: bool = False


def full_name(node: Any) -> str:
    """ "onnx::Conv"."""
    return f"{node.domain or _DEFAULT}::{node.op_type}"


def registered() -> Iterator[str]:
    return (f"{domain or _DEFAULT}::{name}" for domain, name in _by_operator())


def type_of(node: Any, schema: Schema) -> int:
    return BACKEND.intern(
        node.domain or _DEFAULT, node.op_type, inputs=list(schema.inputs), outputs=list(schema.outputs)
    )


def types_in(model: Any) -> Iterator[int]:
    """Those of the operators of a graph, and of its bodies."""
    versions = versions_of(model)
    nodes = (one for node in model.graph.node for one in (node, *protos.inside(node)))
    return (type_of(node, schema_of(node, versions)) for node in nodes)


def versions_of(model: Any) -> dict[str, int]:
    """The versions of operator sets in force, by domain."""
    return {each.domain: each.version for each in model.opset_import}


def schema_of(node: Any, versions: Mapping[str, int]) -> Schema:
    """That of the version in force. Operators without one have their positions numbered."""
    version = versions.get(node.domain, 1)
    fitting = [each for each in _by_operator().get((node.domain, node.op_type), ()) if each.since_version <= version]
    if not fitting:
        return Schema(_numbered("input", node.input), _numbered("output", node.output))
    newest = max(fitting, key=lambda each: each.since_version)
    return _read(newest.domain, newest.name, newest.since_version)


def arranged(names: Sequence[str], given: Sequence[str], is_variadic: bool) -> tuple[Any, ...]:
    """A node's operands by position: "" where none is given, a tuple for a variadic position."""
    if is_variadic:
        fixed = len(names) - 1
        return (*given[:fixed], tuple(given[fixed:]))
    return (*given, *[""] * (len(names) - len(given)))


def _numbered(word: str, given: Sequence[str]) -> tuple[str, ...]:
    return tuple(f"{word}{i}" for i in range(len(given)))


@functools.cache
def _by_operator() -> dict[tuple[str, str], list[Any]]:
    found: dict[tuple[str, str], list[Any]] = {}
    for schema in port.schemas():
        found.setdefault((schema.domain, schema.name), []).append(schema)
    return found


@functools.cache
def _read(domain: str, name: str, version: int) -> Schema:
    schema = next(each for each in _by_operator()[domain, name] if each.since_version == version)
    many = [bool(side) and side[-1].option == port.VARIADIC for side in (schema.inputs, schema.outputs)]
    return Schema(tuple(each.name for each in schema.inputs), tuple(each.name for each in schema.outputs), *many)
