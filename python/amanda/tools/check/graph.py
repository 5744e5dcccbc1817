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


PRODUCTS = ("Addmm", "Mm", "Bmm", "Baddbmm", "Addbmm", "Linear", "Convolution", "MkldnnConvolution")
"""The kinds of nodes of matrix products and convolutions."""
_MOST = 20_000  # nodes of a graph that are looked at


def products_behind(tensor: Any) -> list[Any]:
    """The types of the results of all matrix products and convolutions that a tensor was computed by, as autograd knows
    them: none behind a reentrant checkpoint."""
    found: list[Any] = []
    seen: set[Any] = set()
    todo = [getattr(tensor, "grad_fn", None)]
    while todo and len(seen) < _MOST:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        metadata = getattr(node, "_input_metadata", ())
        if kind(node) in PRODUCTS and metadata:
            found.append(metadata[0].dtype)
        todo += [one for one, _ in node.next_functions]
    return found


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
