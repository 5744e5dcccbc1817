"""Puts taps into a graph, as nodes."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from amanda import _core, _tensorflow
from amanda.drivers.tensorflow import port
from amanda.drivers.tensorflow.lower import nodes, originals
from amanda.drivers.tensorflow.view import op_types
from amanda.drivers.tensorflow.view.graph_site import Shown
from amanda.drivers.tensorflow.view.op_types import Operand

#: An operand of a tap: whether it is an input or an output, its position, and its member there.
Address = tuple[str, int, int]


# The attribute of an operator that holds what its taps, and those of its backward operators in other graphs, share.
_ATTRIBUTE = "_amanda_operator"


class Wiring(NamedTuple):
    """The arguments and results of a tap. Indices are those in `op.inputs` and `op.outputs`."""

    args: list[tuple[Address, int]]
    results: list[tuple[tuple[int, int], int]]  # (position, member), index; of inputs if it is before, else of outputs


def wiring(shown: Shown, tap: _core.Tap) -> Wiring | None:
    """The wiring of a tap. None if it is a backward operator's, and none of the gradients that the tap selects
    exists."""
    if tap.point == "replace":
        return Wiring(_addresses(shown, "input", all_of(shown.inputs)), _results(shown.op.outputs, shown.outputs))
    side, tensors = ("input", shown.op.inputs) if tap.point == "before" else ("output", shown.op.outputs)
    operands = shown.inputs if tap.point == "before" else shown.outputs
    selected = [position for position in range(len(operands)) if tap.selects(position)]
    if shown.forward and selected and all(operands[position] is None for position in selected):
        return None
    args = _addresses(shown, side, selected)
    edited = [position for position in selected if shown.refuse(tap.point, position) is None]
    results = [] if tap.kind == "observe" else _results(tensors, operands, edited)
    if tap.point == "after":
        args += _addresses(shown, "input", [i for i in range(len(shown.inputs)) if tap.shows_input(i)])
    return Wiring(args, results)


def all_of(operands: Sequence[Operand]) -> list[int]:
    return list(range(len(operands)))


def _addresses(shown: Shown, side: str, positions: Sequence[int]) -> list[tuple[Address, int]]:
    operands, tensors = (shown.inputs, shown.op.inputs) if side == "input" else (shown.outputs, shown.op.outputs)
    return [
        ((side, position, member), index)
        for position in positions
        for member, index in op_types.members(operands[position])
        if op_types.is_value(tensors[index])
    ]


def _results(
    tensors: Sequence[tf.Tensor], operands: Sequence[Operand], positions: Sequence[int] | None = None
) -> list[tuple[tuple[int, int], int]]:
    return [
        ((position, member), index)
        for position in (all_of(operands) if positions is None else positions)
        for member, index in op_types.members(operands[position])
        if op_types.is_value(tensors[index])
    ]


class Emitted(NamedTuple):
    op: tf.Operation
    results: dict[int, tf.Tensor]  # by index, in `op.inputs` if the tap is before the operator, else in `op.outputs`


class TapNodes:
    """Taps of one graph. Nodes find their halves of this process by number: keep this as long as the graph runs."""

    def __init__(self, backend: _core.GraphBackend, graph: tf.Graph) -> None:
        self._backend, self._graph = backend, graph
        self.kept: list[_tensorflow.TapNode] = []

    def emit(
        self,
        shown: Shown,
        tap: _core.Tap,
        inputs: Sequence[tf.Tensor],
        outputs: Sequence[tf.Tensor],
        after: Sequence[tf.Operation] = (),
    ) -> Emitted | None:
        """`inputs`, `outputs`: those of the operator, as they are where the tap is. The tap runs when all of `after`
        have run. Returns None if the tap has nothing to look at."""
        wired = wiring(shown, tap)
        if wired is None:
            return None
        if not wired.args:
            wired = wired._replace(args=_anchor(shown, tap))
        args = [inputs[index] if side == "input" else outputs[index] for (side, _, _), index in wired.args]
        own = shown.op.inputs if tap.point == "before" else shown.op.outputs
        likes = [own[index] for _, index in wired.results]
        control_inputs = dict.fromkeys((*after, *(() if args else (tensor.op for tensor in inputs))))
        node_def = self._node_def(shown, tap, wired, args, likes)
        node_def.device = shown.op.device
        op = nodes.of(self._graph).create(self._graph, node_def, args, list(control_inputs), shown.op)
        results = {}
        for output, like, (_, index) in zip(op.outputs, likes, wired.results, strict=True):
            output.set_shape(like.shape)
            results[index] = output
        return Emitted(op, results)

    def _node_def(
        self, shown: Shown, tap: _core.Tap, wired: Wiring, args: Sequence[tf.Tensor], likes: Sequence[tf.Tensor]
    ) -> Any:
        load()
        node = _tensorflow.TapNode(
            operator_of(self._backend, shown),
            tap.id,
            [address for address, _ in wired.args],
            [address for address, _ in wired.results],
            originals.Original(shown.op) if tap.point == "replace" else None,
            shapes=[like.shape.as_list() if like.shape.rank is not None else None for like in likes],
        )
        self.kept.append(node)
        node_def = port.NodeDef(op="AmandaTap")
        node_def.attr["node"].i = node.number
        node_def.attr["Tin"].list.type.extend([tensor.dtype.base_dtype.as_datatype_enum for tensor in args])
        node_def.attr["Tout"].list.type.extend([tensor.dtype.base_dtype.as_datatype_enum for tensor in likes])
        return node_def


def operator_of(backend: _core.GraphBackend, shown: Shown) -> _tensorflow.Operator:
    """The part that the taps of an operator share, in all graphs that have it."""
    known: _tensorflow.Operator | None = getattr(shown.op, _ATTRIBUTE, None)
    if known is None:
        known = _tensorflow.Operator(
            backend.name_space,
            shown.type,
            shown.place.id,
            len(shown.inputs),
            len(shown.outputs),
            module_path=shown.place.module_path,
            source=shown.place.source,
            refuse=shown.refuse,
            forward=operator_of(backend, shown.forward) if shown.forward else None,
        )
        setattr(shown.op, _ATTRIBUTE, known)
    return known


def copied(backend: _core.GraphBackend, shown: Shown, copies: Mapping[tf.Operation, tf.Operation]) -> Shown:
    """An operator with its copy in place of it. For tools it is the same operator."""
    copy = copies[shown.op]
    setattr(copy, _ATTRIBUTE, operator_of(backend, shown))
    forward = shown.forward
    if forward is not None and forward.op in copies:
        forward = forward._replace(op=copies[forward.op])
    return shown._replace(op=copy, forward=forward)


@functools.cache
def load() -> None:
    """Loads what nodes need of TensorFlow, once."""
    modules = (tf.dtypes, tf.dtypes.experimental)  # the latter has those of 8 bits and less
    named = (getattr(module, name) for module in modules for name in dir(module))
    types = [dtype for dtype in named if isinstance(dtype, tf.DType)]
    values = [dtype for dtype in types if dtype not in (tf.resource, tf.variant, tf.string) and not dtype.is_quantized]
    _tensorflow.set_dtypes({dtype.as_datatype_enum: (np.dtype(dtype.as_numpy_dtype), dtype.name) for dtype in values})
    tf.load_op_library(_tensorflow.library_path())


def _anchor(shown: Shown, tap: _core.Tap) -> list[tuple[Address, int]]:
    """A tap that gets nothing runs where the operator does, and as often, because it depends on one of its operands."""
    first = "output" if tap.point == "after" else "input"
    for side in (first, "input"):
        operands = shown.inputs if side == "input" else shown.outputs
        if found := _addresses(shown, side, all_of(operands)):
            return found[:1]
    return []
