"""Values that functions save for the gradients of their operators, which other functions compute.

TensorFlow passes such a value in an optional out of a branch, in a list out of a loop, and as one more result out of a
call. The value is passed once, for all gradients that take it. So an edit must not make them take different values.
"""

from __future__ import annotations

import collections
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from amanda.drivers.tensorflow import port
from amanda.drivers.tensorflow.view import op_types, structure
from amanda.drivers.tensorflow.view.called import CalledFunctions, Function

_HOLDS = {"OptionalFromValue": 0, "TensorListPushBack": 1}  # with the input that they hold
_GIVES = {"OptionalGetValue": "OptionalFromValue", "TensorListPopBack": "TensorListPushBack"}  # with what gives to them
_TAKE_SHAPES = {"Shape", "ShapeN", "Size", "Rank", "ZerosLike", "OnesLike"}  # which edits do not change


class Saver(NamedTuple):
    """The place of a value that is saved: an operator, or a result of functions that were made of the graph."""

    graph: Any
    op: tf.Operation | None
    result: int = 0


class _Reader(NamedTuple):
    op: tf.Operation
    given: int  # the index of the input
    forward: tf.Operation | None  # of a backward operator
    value: tf.Tensor  # in the graph where it is saved


class SavedValues:
    """Those of the functions that a graph calls."""

    def __init__(self, called: CalledFunctions, operators: Sequence[tf.Operation]) -> None:
        self._callers: dict[Any, list[tuple[tf.Operation, Function]]] = collections.defaultdict(list)
        self._called = called
        everything = [*operators]
        for body in called.bodies():
            everything += body.operators
        self._running = {*everything}
        self._passed: set[tuple[int, tf.Operation]] = set()  # ids of tensors, and calls that take them for gradients
        for op in everything:
            if op.type in op_types.CALLS:
                for name in port.function_names(op):
                    function = called.find(name)
                    if function is not None:
                        self._callers[function.graph].append((op, function))
        self._readers: dict[Saver, list[_Reader]] = collections.defaultdict(list)
        self._of: dict[tuple[tf.Operation, int], dict[Saver, None]] = {}  # by forward operator and id of the operand
        self._givers: dict[Saver, list[tf.Operation]] = collections.defaultdict(list)
        self._given: dict[tf.Operation, list[Saver]] = collections.defaultdict(list)
        self._takes: dict[tf.Operation, list[tf.Tensor]] = collections.defaultdict(list)  # by forward operators
        for body in called.bodies():
            gradients = structure.gradients_of(body.operators)
            if not any(gradient.forward.graph is not body.graph for gradient in gradients.values()):
                continue
            for op in body.operators:
                gradient = gradients.get(op)
                if op.type in _GIVES:
                    self._give(op)
                for index, tensor in enumerate(op.inputs) if _uses(op) else ():
                    if op_types.is_value(tensor):
                        self._read(op, index, gradient.forward if gradient else None, body.graph)

    def refuse(self, op: tf.Operation, point: str, tensor: tf.Tensor) -> str | None:
        """Why an edit of an operand before or after an operator would give gradients a wrong value; None if it would
        not."""
        savers = self._savers(op, tensor)
        if point == "before" and not savers and self._takes_from_outside(op, tensor):
            return "the graph has its gradient, which takes the value from outside of the function: edit it there"
        for saver in savers:
            if self._is_shared(saver, op) and not self._has_versions(saver, op):
                return (
                    "the function saves it once for gradients in the graph, which need the value before the edit and the "
                    "value after it: replace the operator that gives it"
                )
        return None

    def savers(self, op: tf.Operation) -> list[Saver]:
        """The places that save operands of an operator for its gradient alone."""
        found = dict.fromkeys(saver for tensor in (*op.inputs, *op.outputs) for saver in self._savers(op, tensor))
        return [saver for saver in found if not self._is_shared(saver, op)]

    def shared(self, op: tf.Operation) -> list[Saver]:
        """The places that save operands of an operator for other gradients, too."""
        found = dict.fromkeys(saver for tensor in (*op.inputs, *op.outputs) for saver in self._savers(op, tensor))
        return [saver for saver in found if self._is_shared(saver, op) and self._has_versions(saver, op)]

    def givers(self, saver: Saver) -> list[tf.Operation]:
        """The operators that take what was saved out of an optional or a list."""
        return self._givers[saver]

    def readers(self, saver: Saver, forward: tf.Operation, giver: tf.Operation) -> list[tuple[tf.Operation, int]]:
        """The backward operators of an operator that get the value from one of those, with the inputs."""
        return [
            (each.op, each.given)
            for each in self._readers[saver]
            if each.forward is forward and each.op.inputs[each.given].op is giver
        ]

    def _is_shared(self, saver: Saver, op: tf.Operation) -> bool:
        if any(each.forward is not op for each in self._readers[saver]):
            return True
        return saver.op is None and self._is_returned(saver.graph, saver.result)

    def _has_versions(self, saver: Saver, op: tf.Operation) -> bool:
        """True if the value can be saved twice."""
        if saver.op is None or (saver.op.type == "TensorListPushBack" and not self._grows(saver.op.inputs[0])):
            return False
        givers = self._givers[saver]
        if any(len(self._given[giver]) > 1 for giver in givers):
            return False
        return all(each.op.inputs[each.given].op in givers for each in self._readers[saver] if each.forward is op)

    def _grows(self, handle: tf.Tensor) -> bool:
        """True if a list has no greatest length."""
        made = [each.op for each, _ in self._sources(handle) if each.op.type == "EmptyTensorList"]
        return bool(made) and all(tf.get_static_value(op.inputs[1]) == -1 for op in made)

    def _savers(self, op: tf.Operation, tensor: tf.Tensor) -> list[Saver]:
        return [*self._of.get((op, id(tensor)), ())]

    def _is_returned(self, graph: Any, index: int) -> bool:
        """True if a result of a function is used by others than gradients."""
        for call, _ in self._callers[graph]:
            if index < len(call.outputs):
                given = call.outputs[index]
                users = [user for user in given.consumers() if user in self._running and user.type not in _TAKE_SHAPES]
                if any((id(given), user) not in self._passed for user in users):
                    return True
                outer = {i for _, function in self._callers[call.graph] for i in _places(given, function.results)}
                if any(self._is_returned(call.graph, i) for i in outer):
                    return True
        return False

    def _takes_from_outside(self, op: tf.Operation, tensor: tf.Tensor) -> bool:
        taken = self._takes.get(op)
        if not taken:
            return False
        outside = [each for each, _ in self._sources(tensor)]
        found = {id(each) for each in outside}
        constants = [(each.dtype, each.shape.as_list()) for each in outside if each.op.type == "Const"]
        for each in taken:
            if id(each) in found:
                return True
            if each.op.type == "Const" and (each.dtype, each.shape.as_list()) in constants:
                return True  # TensorFlow gives gradients constants of their own
        return False

    def _give(self, op: tf.Operation) -> None:
        if not op_types.is_value(op.outputs[-1]):
            return  # an optional or a list, which is itself in a list
        for source, saver in self._sources(op.outputs[-1]):
            holder = saver.op if saver is not None else None
            if saver is None or holder is None or holder.type != _GIVES[op.type]:
                continue
            if source is holder.inputs[_HOLDS[holder.type]] and op_types.is_value(source):
                self._givers[saver].append(op)
                self._given[op].append(saver)

    def _read(self, op: tf.Operation, index: int, forward: tf.Operation | None, graph: Any) -> None:
        for source, saver in self._sources(op.inputs[index]):
            if forward is not None and source.graph is not forward.graph:
                self._takes[forward].append(source)
            if saver is not None and saver.graph is source.graph and source.graph is not graph:
                self._readers[saver].append(_Reader(op, index, forward, source))
                if forward is not None and forward.graph is saver.graph:
                    self._of.setdefault((forward, id(source)), {})[saver] = None

    def _sources(self, tensor: tf.Tensor) -> Iterator[tuple[tf.Tensor, Saver | None]]:
        """The tensors that a value is passed on from, and the last that saved it."""
        waiting: list[tuple[tf.Tensor, Saver | None]] = [(tensor, None)]
        seen: set[int] = set()
        while waiting:
            value, saver = waiting.pop()
            if id(value) not in seen:
                seen.add(id(value))
                yield value, saver
                waiting += self._before(value, saver)

    def _before(self, tensor: tf.Tensor, saver: Saver | None) -> Iterator[tuple[tf.Tensor, Saver | None]]:
        op = tensor.op
        if op.type in _HOLDS:
            yield op.inputs[_HOLDS[op.type]], Saver(op.graph, op)
        elif op.type in _GIVES or op_types.is_identity(op):
            yield op.inputs[tensor.value_index if op.type == "IdentityN" else 0], saver
        elif op.type in op_types.CALLS:
            for part, name in port.functions_in(op.node_def):
                function = self._called.find(name)
                index = tensor.value_index
                if function is not None and part != "cond" and index < len(function.results):
                    # A loop's result may be what its next iteration gets, too.
                    yield function.results[index], None if part == "body" else Saver(function.graph, None, index)
        elif op.type == "Placeholder":
            index = next((i for i, given in enumerate(getattr(op.graph, "inputs", ())) if given is tensor), None)
            for call, function in self._callers.get(op.graph, ()):
                first = len(call.inputs) - len(function.definition.signature.input_arg)  # after a condition
                if index is not None and first + index < len(call.inputs):
                    self._passed.add((id(call.inputs[first + index]), call))
                    yield call.inputs[first + index], saver


def _uses(op: tf.Operation) -> bool:
    """False if it only passes values on to other operators of functions, or takes their shapes."""
    if op.type in op_types.CALLS or op.type in _GIVES or op.type in _TAKE_SHAPES:
        return False
    return not op_types.is_identity(op) or not any(output.consumers() for output in op.outputs)


def _places(tensor: tf.Tensor, tensors: Sequence[tf.Tensor]) -> list[int]:
    return [i for i, each in enumerate(tensors) if each is tensor]
