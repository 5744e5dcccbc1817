"""linear-chain."""

from __future__ import annotations

from typing import Any

from amanda import OpContext, ops

from ..computed import shape_of
from ..graph import Producer, behind, inputs, is_linear, kind, node_behind, producer_of
from ..rule import Rule, operands


class LinearChain(Rule):
    """A linear layer gets the result of another one, and no activation is between: both together compute what one layer
    can. It says nothing if the result between is narrower than what comes before and after, as in factorized weights, nor
    if the layers are in different models of Keras, as a generator and its critic."""

    name = "linear-chain"
    sentence = "two linear layers follow each other without an activation"
    fix = "an activation between them, as activation='relu'; or one layer"
    is_advice = True
    ops = (*ops.linear, "tensorflow::MatMul")
    bad = """
        nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 3))(x).sum().backward()
    """
    good = """
        nn.Sequential(nn.Linear(4, 2), nn.Linear(2, 3))(x).sum().backward()  # of rank 2
        model(x).sum().backward()
    """

    def look(self, context: OpContext) -> None:
        before, widths = _of_tensorflow(context) if context.op.__name__ == "MatMul" else _of_torch(context)
        if all(widths) and widths[1] >= min(widths[0], widths[2]) and not _are_two_models(before, context):
            self.found_in(context, f"it gets the result of {before}; widths are {', '.join(map(str, widths))}")


def _of_tensorflow(context: OpContext) -> tuple[Producer, tuple[Any, ...]]:
    given, weight = inputs(context)
    value = behind(given)
    if value is None or not is_linear(value) or (weight is not None and weight.kind != "variable"):
        return Producer(), (None,)
    product = value
    while product.kind in ("bias_add", "add"):
        product = next(one for one in map(behind, product.inputs) if one is not None and is_linear(one))
    between, out = product.input_shapes[1], shape_of(context.inputs[1])
    if between is None or out is None or len(between) != 2:
        return Producer(), (None,)
    return producer_of(value), (*between, out[-1])


def _of_torch(context: OpContext) -> tuple[Producer, tuple[Any, ...]]:
    given = operands(context)
    node = node_behind(given["input"])
    sizes = getattr(node, "_saved_mat2_sym_sizes", ()) if kind(node) in ("Addmm", "Mm") else ()
    return Producer("linear"), (*sizes, given["weight"].shape[0]) if len(sizes) == 2 else (None,)


def _are_two_models(before: Producer, context: OpContext) -> bool:
    first, here = before.module_path.split("."), context.module_path.split(".")
    return len(first) > 1 and len(here) > 1 and first[0] != here[0]
