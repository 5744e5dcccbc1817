"""Masks of padding that Keras computes from the ids of an embedding, and the layers that would use them."""

from __future__ import annotations

import collections
from collections.abc import Iterator
from typing import Any, NamedTuple

import tensorflow as tf

from amanda.drivers.tensorflow import port
from amanda.drivers.tensorflow.view import places

_SAME = frozenset({"Cast", "Identity", "SelectV2", "Squeeze"})
_COMPARES = frozenset({"NotEqual", "Equal", "Greater", "GreaterEqual"})
_BACKWARD = ("gradient_tape/", "gradients/")
_MOST = 4000  # operators that are looked at


class LostMask(NamedTuple):
    """A mask that no operator uses, although a layer reads what belongs to it."""

    layer: str  # the name of the layer that would use it
    kind: str  # "LSTM"
    operator: str  # the first one behind the embedding
    source: str  # its line


def lost_mask(ids: Any, rows: Any) -> LostMask | None:
    """`rows`: what an embedding gives for the ids. None if they have no mask, or something uses it, or a mask of the
    program's own."""
    root = ids
    while root.op.type in _SAME:
        root = root.op.inputs[2 if root.op.type == "SelectV2" else 0]
    compared = [op for op in _behind(root, _SAME) if op.type in _COMPARES]
    has_mask = any(op.type == "NotEqual" and _is_zero(op.inputs[1]) for op in compared)
    if not has_mask or any(user for one in compared for user in _behind(one.outputs[0], frozenset({"Identity"}))):
        return None
    users = port.layers_with_masks()
    first = next(iter(rows.consumers()), None)
    masked = {part for op in _behind(rows, None) if _takes_mask(op) for part in op.name.split("/")[:-1]}
    for op in _behind(rows, None):
        for part in reversed(op.name.split("/")[:-1]):
            name = part if part in users or not part[-1:].isdigit() else part.rpartition("_")[0]  # a scope has a number
            if name in users and first is not None and part not in masked:
                return LostMask(name, users[name], str(first.type), places.source_of(first))
    return None


def _behind(symbol: Any, passing: frozenset[str] | None) -> Iterator[tf.Operation]:
    """The operators that get a value, the nearest first; also those behind operators of these types, or of all."""
    waiting, seen = collections.deque(symbol.consumers()), set[tf.Operation]()
    while waiting and len(seen) < _MOST:
        op = waiting.popleft()
        if op in seen or op.name.startswith(_BACKWARD):
            continue
        seen.add(op)
        if passing is None or op.type in passing:
            waiting += [user for output in op.outputs for user in output.consumers()]
            if passing is not None:
                continue
        yield op


def _takes_mask(op: tf.Operation) -> bool:
    """As one that a layer was given, or a causal one; not the one of dropout."""
    return "dropout" not in op.name and any(one.dtype == tf.bool and one.shape.rank != 0 for one in op.inputs)


def _is_zero(symbol: Any) -> bool:
    value = tf.get_static_value(symbol)
    return value is not None and value.ndim == 0 and not value
