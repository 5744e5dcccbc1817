"""Saves a value in several versions: before an edit for the gradient of one operator, after it for those of others.

An optional holds several values, and a list may get several in each iteration. So no function gets other operands.
"""

from __future__ import annotations

import collections
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from amanda.drivers.tensorflow.lower import nodes
from amanda.drivers.tensorflow.view.called import Function
from amanda.drivers.tensorflow.view.saved import SavedValues, Saver


class Versions:
    """The values that are saved in more than one version: for these forward operators, in addition."""

    def __init__(self, saved: SavedValues, edited: Sequence[tf.Operation]) -> None:
        self._saved = saved
        self._wanted: dict[Saver, list[tf.Operation]] = collections.defaultdict(list)
        for op in edited:
            for saver in saved.shared(op):
                self._wanted[saver].append(op)

    def save(self, function: Function, definition: Any) -> dict[str, tf.Operation] | None:
        """Changes the definition of a function that saves such values, and of one that takes them. Returns the names of
        the new nodes that take a value as the gradient of an operator does; None if nothing was changed."""
        found: dict[str, tf.Operation] | None = None
        for saver, forwards in self._wanted.items():
            if saver.op in function.nodes:
                found = (found or {}) | _hold(definition, function.nodes[saver.op], forwards)
            for giver in self._saved.givers(saver):
                if giver in function.nodes:
                    readers = [self._saved.readers(saver, forward, giver) for forward in forwards]
                    names = [[(function.nodes[op], index) for op, index in each] for each in readers]
                    _give(definition, function.nodes[giver], names)
                    found = found or {}
        return found


def _hold(definition: Any, name: str, forwards: Sequence[tf.Operation]) -> dict[str, tf.Operation]:
    saver = _node(definition, name)
    is_optional = saver.op == "OptionalFromValue"
    value = saver.input[0 if is_optional else 1]
    dtype = saver.attr["Toutput_types"].list.type[0] if is_optional else saver.attr["element_dtype"].type
    last = f"{name}:output_handle:0"
    found = {}
    for number, forward in enumerate(forwards):
        version = definition.node_def.add(name=f"{nodes.PREFIX}{name}/version{number}", op="Identity", input=[value])
        version.attr["T"].type = dtype
        found[version.name] = forward
        if is_optional:
            saver.input.insert(number + 1, f"{version.name}:output:0")
            saver.attr["Toutput_types"].list.type.append(dtype)
            continue
        push = definition.node_def.add()
        push.CopyFrom(saver)
        push.name = f"{version.name}/push"
        push.input[0], push.input[1] = last, f"{version.name}:output:0"
        last = f"{push.name}:output_handle:0"
    if not is_optional:
        _redirect(definition, f"{name}:output_handle:0", last, but=[f"{nodes.PREFIX}{name}/version0/push"])
    return found


def _give(definition: Any, name: str, readers: Sequence[Sequence[tuple[str, int]]]) -> None:
    giver = _node(definition, name)
    is_optional = giver.op == "OptionalGetValue"
    for number, each in reversed(list(enumerate(readers))):  # the last is popped first
        if is_optional:
            types, shapes = giver.attr["output_types"].list, giver.attr["output_shapes"].list
            types.type.append(types.type[0])
            shapes.shape.add().CopyFrom(shapes.shape[0])
            version = f"{name}:components:{number + 1}"
        else:
            pop = definition.node_def.add()
            pop.CopyFrom(giver)
            pop.name = f"{nodes.PREFIX}{name}/version{number}"
            giver.input[0] = f"{pop.name}:output_handle:0"
            version = f"{pop.name}:tensor:0"
        for reader, index in each:
            _node(definition, reader).input[index] = version


def _node(definition: Any, name: str) -> Any:
    return next(node for node in definition.node_def if node.name == name)


def _redirect(definition: Any, old: str, new: str, but: Sequence[str]) -> None:
    for node in definition.node_def:
        if node.name not in but:
            for index, given in enumerate(node.input):
                if given == old:
                    node.input[index] = new
    for result, given in list(definition.ret.items()):
        if given == old:
            definition.ret[result] = new
