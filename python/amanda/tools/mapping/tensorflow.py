"""The keys of the vocabulary for TensorFlow's operators, in graphs and functions. It imports nothing of TensorFlow."""

from __future__ import annotations

from typing import Any

from amanda import OpContext

from . import layouts
from .words import by_operator

_OPERATORS = by_operator("tensorflow")

_WEIGHT_LAYOUTS = {
    "conv2d": "HWIO",
    "conv3d": "DHWIO",
    "depthwise_conv2d": "HWIM",
    "conv_transpose2d": "HWOI",
    "conv_transpose3d": "DHWOI",
}
_TRANSPOSES = {"MatMul": ("transpose_a", "transpose_b")}


def keys(context: OpContext) -> dict[str, Any]:
    """The keys that the rule writes into the context of a forward operator; empty if there is no word for the
    operator."""
    word, roles = _OPERATORS.get(context.op.__name__, ("", {}))
    if not word or not context.op.name.startswith("tensorflow::"):
        return {}
    names = context.op.input_names
    positions = {role: names.index(name) for role, name in roles.items()}
    if word == "matmul":
        for weight, other in (("right", "left"), ("left", "right")):
            if context.parameter_names[positions[weight]] is not None:
                positions |= {"weight": positions[weight], "input": positions[other]}
                break
    found: dict[str, Any] = {"op_type": word, "roles": positions}
    operation = _operation(context)
    if operation is not None:
        layout = _layout(context, operation, positions)
        weight_layout = _weight_layout(context, operation, word, positions)
        found |= {key: value for key, value in (("layout", layout), ("weight_layout", weight_layout)) if value}
    return found


def _operation(context: OpContext) -> Any:
    """The tf.Operation; None in eager mode, which has none."""
    outputs = context.outputs if context.has_outputs() else ()
    first = outputs[0] if outputs else None
    return getattr(first, "op", None) if context.is_symbolic else None


def _layout(context: OpContext, operation: Any, positions: dict[str, int]) -> str | None:
    if "data_format" not in operation.node_def.attr:
        return None
    given = operation.get_attr("data_format").decode()
    if context.op.__name__ != "BiasAdd":
        return str(given)
    shape = context.inputs[positions["input"]].shape  # BiasAdd takes any rank, and says "NHWC"
    if shape.rank is None:
        return None
    return layouts.channels_first(shape.rank) if given.startswith("NC") else layouts.channels_last(shape.rank)


def _weight_layout(context: OpContext, operation: Any, word: str, positions: dict[str, int]) -> str | None:
    if word in _WEIGHT_LAYOUTS:
        return _WEIGHT_LAYOUTS[word]
    if word != "matmul" or "weight" not in positions:
        return None
    on_the_left = positions["weight"] == positions["left"]
    left, right = _TRANSPOSES.get(context.op.__name__, ("adj_x", "adj_y"))
    rank = context.inputs[positions["weight"]].shape.rank
    transposed = operation.get_attr(left if on_the_left else right)
    return None if rank is None else layouts.factor(rank, on_the_left, transposed)


def grad_roles(context: OpContext) -> dict[str, int]:
    """A backward operator has a position for each input of its forward operator."""
    grad_inputs = context.grad_inputs if context.has_grad_inputs() else ()
    return {
        role: position
        for role, position in context["roles"].items()
        if position < len(grad_inputs) and grad_inputs[position] is not None
    }
