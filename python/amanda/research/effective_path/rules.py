"""Rules: the backward operators by which masks take the place of gradients."""

from __future__ import annotations

from torch import Tensor

from amanda import Error, ops
from amanda.research.effective_path import masks, pointwise, synapses
from amanda.research.effective_path.extraction import Execution
from amanda.toolkit.places import Place

known = frozenset((*synapses.known, *pointwise.slopes))
"""Operators with a rule, by name; in-place forms have the rule of the others."""

# Nodes that only move elements: their own backward operators move the mask, too.
_MOVES = frozenset(
    (
        *("AccumulateGrad", "Alias", "AsStrided", "Cat", "Clone", "ConstantPadNd", "Expand", "Flip", "Gather", "Index"),
        *("IndexSelect", "Permute", "Repeat", "ReshapeAlias", "Roll", "Select", "Slice", "Sort", "Split"),
        *("SplitWithSizes", "Squeeze", "Stack", "T", "ToCopy", "Transpose", "Unbind", "UnsafeSplit", "UnsafeView"),
        *("Unsqueeze", "View"),
    )
)
# Nodes whose operator chooses among its inputs: the place of the input among the node's gradients.
_CHOOSES = {
    "Addmm": 1,
    **dict.fromkeys(("Add", "Convolution", "Mean", "Mm", "Sub", "Sum"), 0),
    **dict.fromkeys(("AdaptiveAvgPool2D", "AdaptiveAvgPool3D", "AvgPool2D", "AvgPool3D"), 0),
    **dict.fromkeys(("MaxPool2DWithIndices", "MaxPool3DWithIndices"), 0),
}
_PROMOTES = frozenset(("add", "sub", "rsub", "mul", "div"))  # their inputs may have other dtypes than the output
# How many gradients a node returns, if it is more than one.
_GRADIENTS = {
    **dict.fromkeys(("AddmmBackward0", "ConvolutionBackward0"), 3),
    **dict.fromkeys(("NativeBatchNormBackward0", "CudnnBatchNormBackward0", "MiopenBatchNormBackward0"), 3),
    **dict.fromkeys(
        ("AddBackward0", "SubBackward0", "RsubBackward0", "MulBackward0", "DivBackward0", "MmBackward0"), 2
    ),
}


def base(name: str) -> str:
    """The name of the operator that is not in place."""
    return name.removesuffix("_")


def moves(node: str) -> bool:
    """True if the backward operator itself does with a mask what it should."""
    return _kind(node) in _MOVES


def carry(mask: Tensor | None, node: str, execution: Execution) -> tuple[Tensor | None, ...]:
    """The masks that the node returns in place of its gradients.

    Raises:
        amanda.Error: the operator has no rule.
    """
    found: list[Tensor | None] = [None] * _GRADIENTS.get(node, 1)
    if mask is None:
        return tuple(found)
    place, name = execution.place, base(execution.place.name.removeprefix("aten::"))
    masks.checked(mask, str(place))
    inputs = execution.unchanged(str(place))
    slope = pointwise.slopes[name](inputs, execution.live) if name in pointwise.slopes else None
    if slope is not None:
        source, factor = slope
        first = list(inputs).index(source)
        parts = [masks.through(mask, execution.sign, inputs[source], factor, name in pointwise.activations)]
    elif name in synapses.known and _kind(node) in _CHOOSES:
        first = _CHOOSES[_kind(node)]
        parts = _choose(mask, name, execution)
    else:
        raise unknown(place, f"no rule for its {node}")
    for position, part in enumerate(parts, first):
        found[position] = part.to(list(inputs.values())[position].dtype if name in _PROMOTES else mask.dtype)
    return tuple(found)


def _choose(mask: Tensor, name: str, execution: Execution) -> list[Tensor]:
    place, shape, samples = execution.place, execution.sign.shape, execution.extraction.samples
    if not execution.live:
        raise unknown(place, "none of them is seen to depend on the sample, as inside a transformation of torch.func")
    if name not in _PROMOTES and execution.live != [ops.factors.get(name, ("self",))[0]]:
        raise unknown(place, f"{' and '.join(execution.live)} depend on the sample")
    try:
        found = synapses.known[name](shape, execution.inputs, name)
    except synapses.UnknownError as error:
        raise unknown(place, str(error)) from None
    if samples > 1 and shape[:1] != (samples,):
        raise Error(
            f"[effective_path] {place}: outputs of {list(shape)} do not begin with the {samples} samples; pass one "
            "sample at a time"
        )
    wanted = masks.wanted(mask.flatten(), execution.sign.flatten())
    return found.split(execution.extraction.choose(place, found, shape, mask.flatten(), wanted), mask.dim())


def _kind(node: str) -> str:
    """Mean of MeanBackward1."""
    return node.rstrip("0123456789").removesuffix("Backward")


def unknown(place: Place, why: str) -> Error:
    """The error of an operator without a rule."""
    names = ", ".join(sorted(known - pointwise.activations))
    return Error(
        f"[effective_path] {place} is on the path, but which of its inputs are critical is not known: {why}. Known "
        f"are {names}, activations, and what only moves elements; write the model with these, or extract the path of the "
        "part that follows"
    )
