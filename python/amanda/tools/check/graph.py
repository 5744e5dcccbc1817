"""Producers: the operators that computed a value. In PyTorch they are nodes of autograd, of which no saved tensor is read;
in TensorFlow they are `Computed`."""

from __future__ import annotations

from collections.abc import Container
from typing import Any, NamedTuple

from amanda import OpContext
from amanda.toolkit.frameworks import is_tensorflow
from amanda.toolkit.operators import WEIGHTED
from amanda.toolkit.schemas import MOVES_GRADIENTS

from .computed import KEY, Computed

_PASSES = (MOVES_GRADIENTS - {"CatBackward0", "AccumulateGrad"}) | {"ToCopyBackward0", "ExpandBackward0"}
_KEEPS_AXES = {"ToCopyBackward0", "AliasBackward0", "CloneBackward0"}
_KINDS = {"Softmax": "softmax", "LogSoftmax": "log_softmax", "Sigmoid": "sigmoid", "Tanh": "tanh", "Relu": "relu"}
_KINDS |= dict.fromkeys(("Addmm", "Mm", "Linear", "Convolution", "MkldnnConvolution"), "linear")

_CASTS = ("Cast", "Identity", "CheckNumerics")  # of TensorFlow
_MOVES = (*_CASTS, "Reshape", "Squeeze", "ExpandDims", "Transpose", "EnsureShape")


class Producer(NamedTuple):
    """The operator that computed a value, behind views and casts."""

    kind: str = ""  #: "softmax", "linear" of a product with a weight, else the operator's own name; "" of data
    axis: int | None = None  #: of a softmax, from 0 on
    module_path: str = ""

    def __str__(self) -> str:
        return f"{self.kind} in {self.module_path}" if self.module_path else self.kind


def producer(context: OpContext, name: str, *, keeps_axes: bool = False) -> Producer:
    """The producer of an input, by its name in the schema. `keeps_axes`: only behind what leaves all axes as they are."""
    position = context.op.input_names.index(name)
    if is_tensorflow(context):
        return producer_of(inputs(context)[position], keeps_axes=keeps_axes)
    tensor = context.inputs[position]
    node = node_behind(tensor, keeps_axes=keeps_axes)
    known = kind(node)
    return Producer(_KINDS.get(known, known), axis(node, tensor.dim()) if known.endswith("Softmax") else None)


# ---- TensorFlow ---------------------------------------------------------------------------------------------------------


def inputs(context: OpContext) -> tuple[Computed | None, ...]:
    """The inputs of an operator of TensorFlow, as they were computed; None for data."""
    return tuple(context.get(KEY, ()))


def behind(value: Computed | None) -> Computed | None:
    """The same values before views and casts."""
    while value is not None and value.kind in _MOVES:
        value = value.inputs[0]
    return value


def producer_of(value: Computed | None, *, keeps_axes: bool = False) -> Producer:
    transposed = False
    while value is not None and value.kind in (_CASTS if keeps_axes else _MOVES):
        transposed = transposed != (value.kind == "Transpose")
        value = value.inputs[0]
    if value is None:
        return Producer()
    last = len(value.shape) - 1 if value.shape is not None else None
    over = (0 if transposed else 1) if last == 1 else None if transposed else last
    return Producer("linear" if is_linear(value) else value.kind, over, value.module_path)


def is_linear(value: Computed | None) -> bool:
    """A product with a weight, with or without a bias."""
    if value is None:
        return False
    if value.kind == "bias_add":
        return is_linear(behind(value.inputs[0]))
    if value.kind == "add":
        return any(is_linear(one) and _is_bias(other) for one, other in (value.inputs, value.inputs[::-1]))
    return value.kind in WEIGHTED and (value.kind != "matmul" or (value.shape is not None and len(value.shape) == 2))


def _is_bias(value: Computed | None) -> bool:
    return value is None or (value.kind == "variable" and value.shape is not None and len(value.shape) < 2)


def clipped(value: Computed | None) -> Computed | None:
    """The values that are clipped to probabilities, with a bound of at most 1; None if none are."""
    if value is not None and value.kind == "ClipByValue":
        return value.inputs[0] if _is_bound(value.numbers[2]) else None
    for outer, inner in (("Maximum", "Minimum"), ("Minimum", "Maximum")):
        if value is not None and value.kind == outer:
            below = value.inputs[0]
            upper = value if outer == "Minimum" else below
            if below is not None and upper is not None and below.kind == inner and _is_bound(upper.numbers[1]):
                return below.inputs[0]
    return None


def _is_bound(number: float | None) -> bool:
    return number is not None and 0 < number <= 1


def without_division(value: Computed | None) -> tuple[Computed | None, bool]:
    """The values before each was divided by the sum of all; True if that was done."""
    if value is not None and value.kind == "div":
        above, below = value.inputs
        if below is not None and below.kind == "sum" and below.inputs[0] is above:
            return above, True
    return value, False


def logits_of_sigmoid_loss(exponential: Computed | None) -> Computed | None:
    """The logits of `tf.nn.sigmoid_cross_entropy_with_logits`, which computes log1p(exp(-abs(logits))) with a Select."""
    chosen = exponential.inputs[0] if exponential is not None and exponential.kind == "Exp" else None
    if chosen is None or chosen.kind not in ("Select", "SelectV2"):
        return None
    _, negated, logits = chosen.inputs
    is_loss = negated is not None and negated.kind == "Neg" and negated.inputs[0] is logits
    return logits if is_loss else None


# ---- PyTorch ------------------------------------------------------------------------------------------------------------

_PRODUCTS = ("Addmm", "Mm", "Bmm", "Baddbmm", "Addbmm", "Linear", "Convolution", "MkldnnConvolution")
_MOST = 20_000  # nodes of a graph that are looked at


def node_behind(tensor: Any, *, keeps_axes: bool = False) -> Any:
    """The autograd node that computed the values of a tensor, behind views and casts; None if autograd has none."""
    return passed(getattr(tensor, "grad_fn", None), _KEEPS_AXES if keeps_axes else _PASSES)


def passed(node: Any, passes: Container[str] = _PASSES) -> Any:
    """The node behind views and casts; None if autograd has none."""
    while node is not None and node.name() in passes and node.next_functions:
        node = node.next_functions[0][0]
    return node


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
        if kind(node) in _PRODUCTS and metadata:
            found.append(metadata[0].dtype)
        todo += [one for one, _ in node.next_functions]
    return found


def leads_to_embedding(tensor: Any, number: int) -> bool:
    """A tensor was computed from the rows that an embedding looked up, whose node has this number."""
    seen: set[Any] = set()
    todo = [getattr(tensor, "grad_fn", None)]
    while todo and len(seen) < _MOST:
        node = todo.pop()
        if node is None or node in seen or node._sequence_nr() < number:  # nodes before it cannot lead to it
            continue
        if node._sequence_nr() == number and kind(node) == "Embedding":
            return True
        seen.add(node)
        todo += [one for one, _ in node.next_functions]
    return False


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
