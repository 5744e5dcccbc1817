"""Reads and cuts ONNX graphs, as protocol buffers. Nothing here knows a runtime."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

Array = np.ndarray[Any, Any]


def attributes(node: Any) -> dict[str, str]:
    """The attributes of a node, as text: `"strides": "[1, 1]"`. Bodies are left out."""
    plain = [
        each for each in node.attribute if each.type not in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS)
    ]
    return {each.name: _text(onnx.helper.get_attribute_value(each)) for each in plain}


def bodies(node: Any) -> dict[str, Any]:
    """The graphs of an If, a Loop, a Scan, by attribute: a "then_branch" before an "else_branch"."""
    found = {each.name: each.g for each in node.attribute if each.HasField("g")}
    found |= {f"{each.name}[{i}]": graph for each in node.attribute for i, graph in enumerate(each.graphs)}
    return dict(sorted(found.items(), reverse=True)) if found else found


def inside(node: Any) -> list[Any]:
    """The nodes of its bodies, and of theirs."""
    return [found for body in bodies(node).values() for inner in body.node for found in (inner, *inside(inner))]


def reads(node: Any) -> list[str]:
    """The values that a node gets from around it. Those that its bodies capture are included."""
    return [
        name for name in (*node.input, *(name for body in bodies(node).values() for name in captured(body))) if name
    ]


def captured(body: Any) -> list[str]:
    """The values that a body gets from around it, other than by its inputs."""
    own, found = _made_in(body), []
    for node in body.node:
        found += [name for name in reads(node) if name not in own]
    return list(dict.fromkeys(found + [each.name for each in body.output if each.name not in own]))


def initializers(graph: Any) -> list[Any]:
    """Those of a graph, and of the bodies in it."""
    nested = [body for node in graph.node for body in bodies(node).values()]
    return [*graph.initializer, *(one for body in nested for one in initializers(body))]


def drop_repeated_constants(graph: Any) -> None:
    """ONNX Runtime writes a Constant of a body of a body as a node, and as an initializer: one name for two values."""
    names = {each.name for each in graph.initializer}
    kept = [node for node in graph.node if not (node.op_type == "Constant" and names.issuperset(node.output))]
    if len(kept) < len(graph.node):
        del graph.node[:]
        graph.node.extend(kept)
    for node in graph.node:
        for body in bodies(node).values():
            drop_repeated_constants(body)


def give_unique_names(graph: Any) -> None:
    """Renames values of bodies, of which those of two branches may have one name. Values of the graph keep theirs."""
    _give_unique_names(graph, _made_in(graph))


def renamed(node: Any, names: Mapping[str, str]) -> Any:
    """A copy that reads other values, in its bodies too."""
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    if names:
        _rename(copy, names)
    return copy


def part(
    model: Any,
    weights: Iterable[Any],
    nodes: Sequence[Any],
    inputs: Mapping[str, Any],
    outputs: Iterable[str],
    constants: Mapping[str, Array],
) -> Any:
    """A model of some of the nodes of another, with the initializers that these read, and with more constants.

    Arguments:
        weights: the initializers of the other one, and of its bodies.
        inputs: its inputs, by name, and their types.
    """
    graph = onnx.GraphProto(name="part")
    graph.node.extend(nodes)
    graph.input.extend(onnx.helper.make_value_info(name, type) for name, type in inputs.items())
    graph.output.extend(onnx.ValueInfoProto(name=name) for name in outputs)
    needed = {name for node in nodes for name in reads(node)} - set(inputs) - set(constants)
    graph.initializer.extend(each for each in weights if each.name in needed)
    graph.sparse_initializer.extend(each for each in model.graph.sparse_initializer if each.values.name in needed)
    graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in constants.items())
    made = onnx.ModelProto(ir_version=model.ir_version, graph=graph)
    made.opset_import.extend(model.opset_import)
    made.functions.extend(model.functions)
    return made


def _made_in(body: Any) -> set[str]:
    """The names that stand for something of the body's own: ONNX lets no name stand for two values that are in reach."""
    return {
        *(each.name for each in (*body.input, *body.initializer)),
        *(each.values.name for each in body.sparse_initializer),
        *(name for node in body.node for name in node.output if name),
    }


def _give_unique_names(graph: Any, taken: set[str]) -> None:
    for node in graph.node:
        for body in bodies(node).values():
            names: dict[str, str] = {}
            for name in sorted(_made_in(body) & taken):
                numbers = (f"{name}@{number}" for number in itertools.count(2))
                names[name] = next(each for each in numbers if each not in taken)
            if names:
                _rename_own(body, names)
            taken |= _made_in(body)
            _give_unique_names(body, taken)


def _rename_own(body: Any, names: Mapping[str, str]) -> None:
    for each in (*body.input, *body.output, *body.initializer, *body.value_info):
        each.name = names.get(each.name, each.name)
    for each in body.sparse_initializer:
        each.values.name = names.get(each.values.name, each.values.name)
    for node in body.node:
        _rename(node, names)
        node.output[:] = [names.get(name, name) for name in node.output]


def _rename(node: Any, names: Mapping[str, str]) -> None:
    for i, name in enumerate(node.input):
        node.input[i] = names.get(name, name)
    for body in bodies(node).values():
        own = _made_in(body)
        outer = {name: new for name, new in names.items() if name not in own}
        for inner in body.node:
            _rename(inner, outer)
        _pass_on(body, {each.name: outer[each.name] for each in body.output if each.name in outer})


def _pass_on(body: Any, names: Mapping[str, str]) -> None:
    """A body that returns an outer value needs a node for it, as its output keeps its name."""
    for name, new in names.items():
        body.node.add(op_type="Identity", input=[new], output=[name])


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
