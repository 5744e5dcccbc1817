"""Faults to plant in ONNX files, by kind. Each is a change that an exporter, an optimizer or a hand makes in practice."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import numpy as np
import onnx
from onnx import helper, numpy_helper

UNARY = ("Relu", "Gelu", "Tanh", "Sigmoid", "LayerNormalization", "Softmax", "Erf", "HardSwish", "Sqrt", "Neg")
COMPUTES = ("MatMul", "Gemm", "Conv", "LayerNormalization", "Softmax", "Gelu", "Add", "Mul", "Tanh")


@dataclasses.dataclass(frozen=True)
class Fault:
    """A changed file."""

    kind: str
    model: onnx.ModelProto
    outputs: tuple[str, ...]  # the first outputs of the nodes that were changed, or that read what was


def faults(model: onnx.ModelProto) -> Iterator[Fault]:
    """All faults of all kinds, one after the other, in a fixed order."""
    for kind, plant in KINDS.items():
        for i in range(len(model.graph.node)):
            changed = _copy(model)
            node = changed.graph.node[i]
            if node.output[0] and plant(changed, node, i):
                yield Fault(kind, changed, (_planted(changed, node),))


def both(first: Fault, second: Callable[[onnx.ModelProto, onnx.NodeProto, int], bool], i: int) -> Fault | None:
    """Another one in the file of the first."""
    changed = _copy(first.model)
    node = changed.graph.node[i]
    if node.output[0] in first.outputs or not second(changed, node, i):
        return None
    return Fault(f"{first.kind} and another", changed, (*first.outputs, _planted(changed, node)))


def _planted(model: onnx.ModelProto, node: onnx.NodeProto) -> str:
    return node.output[0].removesuffix("_once")


def _copy(model: onnx.ModelProto) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    return copy


def _attribute(node: onnx.NodeProto, name: str):
    return next((helper.get_attribute_value(each) for each in node.attribute if each.name == name), None)


def _set(node: onnx.NodeProto, name: str, value: object) -> None:
    kept = [each for each in node.attribute if each.name != name]
    del node.attribute[:]
    node.attribute.extend([*kept, helper.make_attribute(name, value)])


def _shape(model: onnx.ModelProto, name: str) -> list[int] | None:
    for each in (*model.graph.value_info, *model.graph.output, *model.graph.input):
        if each.name == name:
            return [dim.dim_value for dim in each.type.tensor_type.shape.dim]
    return None


def _constant(model: onnx.ModelProto, name: str) -> onnx.TensorProto | None:
    return next((each for each in model.graph.initializer if each.name == name), None)


def _own(model: onnx.ModelProto, node: onnx.NodeProto, position: int, array: np.ndarray) -> None:
    """The node reads another constant; other readers of the old one keep it."""
    name = f"{node.output[0]}_planted_{position}"
    model.graph.initializer.append(numpy_helper.from_array(array, name))
    node.input[position] = name


def _insert(model: onnx.ModelProto, i: int, op: str, inputs: list[str], output: str, **attributes: object) -> None:
    model.graph.node.insert(i, helper.make_node(op, inputs, [output], name=f"{output}_planted", **attributes))


def epsilon(model, node, i):
    if node.op_type not in ("LayerNormalization", "BatchNormalization", "InstanceNormalization", "RMSNormalization"):
        return False
    _set(node, "epsilon", 0.05)
    return True


def axis(model, node, i):
    shape = _shape(model, node.output[0])
    if node.op_type not in ("Softmax", "LogSoftmax") or not shape or len(shape) < 2:
        return False
    _set(node, "axis", len(shape) - 2)
    return True


def transposition(model, node, i):
    """Another permutation with the same shape."""
    shape, perm = _shape(model, node.output[0]), _attribute(node, "perm")
    if node.op_type != "Transpose" or not shape:
        return False
    for a in range(len(shape)):
        for b in range(a + 1, len(shape)):
            source = [shape[perm.index(k)] for k in range(len(perm))]
            other = list(perm)
            other[a], other[b] = other[b], other[a]
            if shape[a] > 1 and [source[k] for k in other] == shape:
                _set(node, "perm", other)
                return True
    return False


def cast(model, node, i):
    """A coarse rounding before the node: float16 is the least that tools insert."""
    if node.op_type not in ("MatMul", "Gemm", "Conv", "LayerNormalization", "Softmax") or _constant(
        model, node.input[0]
    ):
        return False
    read = node.input[0]
    node.input[0] = f"{node.output[0]}_single"
    _insert(model, i, "Cast", [read], f"{node.output[0]}_half", to=onnx.TensorProto.FLOAT16)
    _insert(model, i + 1, "Cast", [f"{node.output[0]}_half"], f"{node.output[0]}_single", to=onnx.TensorProto.FLOAT)
    return True


def weight(model, node, i):
    """One element of a matrix."""
    for position, name in enumerate(node.input):
        found = _constant(model, name)
        if found is not None and len(found.dims) >= 2 and node.op_type in ("MatMul", "Gemm", "Conv"):
            array = numpy_helper.to_array(found).copy()
            array.flat[array.size // 2] += np.abs(array).max()
            _own(model, node, position, array)
            return True
    return False


def bias(model, node, i):
    for position, name in enumerate(node.input):
        found = _constant(model, name)
        if found is not None and len(found.dims) == 1 and found.dims[0] > 1 and found.data_type == 1:
            _own(model, node, position, np.roll(numpy_helper.to_array(found) + np.float32(0.01), 1))
            return True
    return False


def approximation(model, node, i):
    if node.op_type != "Gelu":
        return False
    was = _attribute(node, "approximate") or b"none"
    _set(node, "approximate", "none" if was == b"tanh" else "tanh")
    return True


def dropped(model, node, i):
    if node.op_type not in UNARY:
        return False
    del node.input[1:], node.attribute[:]
    node.op_type = "Identity"
    return True


def doubled(model, node, i):
    if node.op_type not in ("Gelu", "Tanh", "Sigmoid", "Softmax", "LayerNormalization", "Erf", "Neg", "Sqrt"):
        return False
    again = helper.make_node(
        node.op_type, [f"{node.output[0]}_once", *node.input[1:]], [node.output[0]], name="planted"
    )
    again.attribute.extend(node.attribute)
    again.metadata_props.extend(node.metadata_props)
    node.output[0] = f"{node.output[0]}_once"
    model.graph.node.insert(i + 1, again)
    return True


def constant(model, node, i):
    """A number: a scale, an exponent, a factor."""
    for position, name in enumerate(node.input):
        found = _constant(model, name)
        if found is not None and found.data_type == 1 and int(np.prod(found.dims)) == 1:
            _own(model, node, position, numpy_helper.to_array(found) * np.float32(1.05))
            return True
    return False


def mask(model, node, i):
    """A position that the mask hid is seen, or the other way round."""
    if node.op_type != "Where":
        return False
    for position in (0, 1, 2):
        found = _constant(model, node.input[position])
        if found is not None and found.data_type == onnx.TensorProto.BOOL and int(np.prod(found.dims)) > 1:
            array = numpy_helper.to_array(found).copy()
            array.flat[0] = not array.flat[0]
            _own(model, node, position, array)
            return True
    node.input[1], node.input[2] = node.input[2], node.input[1]
    return True


def operands(model, node, i):
    if node.op_type not in ("Sub", "Div") or node.input[0] == node.input[1]:
        return False
    node.input[0], node.input[1] = node.input[1], node.input[0]
    return True


KINDS = {
    each.__name__: each
    for each in (
        epsilon,
        axis,
        transposition,
        cast,
        weight,
        bias,
        approximation,
        dropped,
        doubled,
        constant,
        mask,
        operands,
    )
}
