"""The autograd graph behind a tensor: which operator has computed it. Reads nodes only, no saved tensors."""

from __future__ import annotations

from typing import Any

from amanda.toolkit.schemas import MOVES_GRADIENTS

_PASSES = (MOVES_GRADIENTS - {"CatBackward0", "AccumulateGrad"}) | {"ToCopyBackward0", "ExpandBackward0"}
_KEEPS_AXES = {"ToCopyBackward0", "AliasBackward0", "CloneBackward0"}


def producer(tensor: Any, *, keeps_axes: bool = False) -> Any:
    """The autograd node that computed the values of a tensor, behind views and casts; None if autograd has none.

    `keeps_axes`: only behind what leaves all axes as they are.
    """
    node = getattr(tensor, "grad_fn", None)
    passes = _KEEPS_AXES if keeps_axes else _PASSES
    while node is not None and node.name() in passes and node.next_functions:
        node = node.next_functions[0][0]
    return node


def kind(node: Any) -> str:
    """ "Softmax" of "SoftmaxBackward0"; "" of None."""
    return node.name().partition("Backward")[0] if node is not None else ""


def axis(node: Any, dimensions: int) -> int | None:
    """The axis of a softmax, from 0 on; None if it is not known."""
    saved = getattr(node, "_saved_dim", None)
    if saved is None:
        return None
    signed = saved - 2**64 if saved >= 2**63 else saved
    return int(signed % dimensions) if dimensions else 0
