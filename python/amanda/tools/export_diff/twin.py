"""Twin: a copy of the file in which whatever reads a value gets a reference instead."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from . import libraries
from .results import bodies, outputs_by_reader

_QUANTIZES, _DEQUANTIZES = "QuantizeLinear", "DequantizeLinear"


def reference(name: str) -> str:
    """The name of the twin's input for a value."""
    return f"{name}@reference"


def rounded(name: str) -> str:
    """The name of the value after it was quantized and dequantized."""
    return f"{name}@rounded"


def shown(proto: Any, names: Iterable[str]) -> Any:
    """A copy in which these values are outputs, and nothing else."""
    copy = _copy(proto)
    del copy.graph.output[:]
    for name in names:
        copy.graph.output.add(name=name)
    return copy


def healed(proto: Any, types: Mapping[str, int], names: Iterable[str]) -> tuple[Any, dict[str, str]]:
    """The twin, and the name of the value to compare for each of `names`.

    If a quantizer rounds a value for its readers, the rounded value is compared: it may have removed an operator before,
    such as a Relu, of which the rounding does the work.

    Arguments:
        types: the element types of values, numbers of `onnx.TensorProto`.
        names: the values of which there are references.
    """
    twin, wanted = _copy(proto), list(names)
    healing = {name: reference(name) for name in wanted}
    for node in twin.graph.node:
        _rename(node, healing)
    compared = _rounded_too(proto, twin, wanted)
    del twin.graph.output[:]
    onnx = libraries.onnx()
    for name in wanted:
        twin.graph.input.append(onnx.helper.make_tensor_value_info(reference(name), types[name], None))
        twin.graph.output.add(name=compared[name])
    return twin, compared


def _rounded_too(proto: Any, twin: Any, names: Iterable[str]) -> dict[str, str]:
    """Adds the quantizers of the values themselves. Returns the names of the values to compare."""
    readers, compared = outputs_by_reader(proto.graph), {name: name for name in names}
    for name in compared:
        after = readers.get(name, [])
        quantizers = [node for node in after if node.op_type == _QUANTIZES and node.input[0] == name]
        if not quantizers or len(quantizers) != len(after):
            continue
        back = next((each for each in readers.get(quantizers[0].output[0], []) if each.op_type == _DEQUANTIZES), None)
        if back is None:
            continue
        first, second = twin.graph.node.add(), twin.graph.node.add()
        first.CopyFrom(quantizers[0])
        second.CopyFrom(back)
        first.name, second.name = f"{name}@quantize", f"{name}@dequantize"
        first.output[0] = second.input[0] = f"{name}@integers"
        second.output[0] = compared[name] = rounded(name)
    return compared


def _rename(node: Any, names: Mapping[str, str]) -> None:
    """Readers get the new names, in the bodies of a node, too, where they do not name something of their own."""
    for i, name in enumerate(node.input):
        if name in names:
            node.input[i] = names[name]
    for body in bodies(node):
        own = {each.name for each in (*body.input, *body.initializer)} | {o for each in body.node for o in each.output}
        outer = {name: new for name, new in names.items() if name not in own}
        for inner in body.node:
            _rename(inner, outer)


def _copy(proto: Any) -> Any:
    copy = type(proto)()
    copy.CopyFrom(proto)
    return copy
