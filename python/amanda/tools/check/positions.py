"""Positions: the positions of a sequence that rows of a tensor were computed from, as autograd's graph shows them."""

from __future__ import annotations

from typing import Any

from .graph import axis as axis_of
from .graph import kind

_OPERANDS = {"Mm": (0,), "Linear": (0,), "Addmm": (1,), "NativeLayerNorm": (0,), "FusedRmsNorm": (0,)}
"""The operands of operators with weights whose rows are the rows of the result."""
_KEEPS_ROWS = {
    *("Add", "Sub", "Mul", "Div", "Neg", "NativeDropout", "Clone", "ToCopy", "Alias"),
    *("Gelu", "Relu", "Silu", "Tanh", "Sigmoid", "LeakyRelu", "Softplus"),
    *(
        "View",
        "UnsafeView",
        "ReshapeAlias",
        "Unsqueeze",
        "Squeeze",
        "Transpose",
        "Permute",
        "Slice",
        "LogSoftmax",
        *_OPERANDS,
    ),
}
_MOST = 20_000  # nodes of a graph that are looked at


def first_position(scores: Any, number: int, axis: int, rows: int, steps: int) -> int | None:
    """The position in a sequence of ids that the first row of a result was computed from.

    It follows operators that keep rows apart, such as those of the residual stream of a transformer, and slices.

    Arguments:
        scores: a result, with `rows` rows for each sequence.
        number: of the node of the embedding that looked up the ids.
        axis: that of the sequence in the ids, which has `steps` positions.

    Returns:
        None if no such path leads to the embedding.
    """
    seen: set[tuple[Any, int, int]] = set()
    todo = [(scores.grad_fn, 0, rows)]
    while todo and len(seen) < _MOST:
        state = node, first, count = todo.pop()
        if node is None or state in seen:
            continue
        seen.add(state)
        name = kind(node)
        if name == "Embedding" and node._sequence_nr() == number:
            return first if count == steps else None
        if name not in _KEEPS_ROWS or (name == "LogSoftmax" and not _is_over_features(node)):
            continue
        if name == "Slice":
            before = _before_slice(node, axis, count)
            if before is None:
                continue
            first, count = first + before[0], before[1]
        edges = node.next_functions
        todo += [(edges[one][0], first, count) for one in _OPERANDS.get(name, range(len(edges))) if one < len(edges)]
    return None


def _is_over_features(node: Any) -> bool:
    dimensions = len(node._input_metadata[0].shape)
    return axis_of(node, dimensions) == dimensions - 1


def _before_slice(node: Any, axis: int, count: int) -> tuple[int, int] | None:
    """Where a slice begins, and the positions before it; None if it is none of positions, and not of features."""
    before, after = tuple(node._saved_self_sym_sizes), tuple(node._input_metadata[0].shape)
    dim = _signed(node._saved_dim) % len(before)
    if before[dim] == after[dim] or (dim == len(before) - 1 and dim > 1):
        return 0, count
    if len(before) < 3 or dim != axis or after[dim] != count or node._saved_step != 1:
        return None
    start = _signed(node._saved_start)
    return (start if start >= 0 else start + before[dim]), before[dim]


def _signed(number: int) -> int:
    return number - 2**64 if number >= 2**63 else number
