"""The keys of the vocabulary for PyTorch's operators. It imports nothing of PyTorch."""

from __future__ import annotations

from typing import Any

from amanda import OpContext
from amanda.toolkit.arrays import arrays_of

from . import layouts
from .words import by_operator

_OPERATORS = by_operator("pytorch")

_ALL_THREE = ("input", "weight", "bias")
_FACTORS = ("left", "right")
_GRADIENTS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("ConvolutionBackward0", "NativeLayerNormBackward0"), _ALL_THREE),
    **{f"{library}BatchNormBackward0": _ALL_THREE for library in ("Native", "Cudnn", "Miopen")},
    **dict.fromkeys(
        ("MmBackward0", "BmmBackward0", "AddBackward0", "SubBackward0", "MulBackward0", "DivBackward0"), _FACTORS
    ),
    **dict.fromkeys(("AddmmBackward0", "BaddbmmBackward0", "AddmvBackward0"), ("bias", *_FACTORS)),
    "MvBackward0": _FACTORS,
    "EmbeddingBackward0": ("weight",),
    **dict.fromkeys(
        (
            *("ReluBackward0", "HardtanhBackward0", "LeakyReluBackward0", "EluBackward0", "GeluBackward0"),
            *("SiluBackward0", "SoftplusBackward0", "SigmoidBackward0", "TanhBackward0", "SoftmaxBackward0"),
            *("LogSoftmaxBackward0", "MaxPool2DWithIndicesBackward0", "MaxPool3DWithIndicesBackward0"),
            *("AvgPool2DBackward0", "AvgPool3DBackward0"),
        ),
        ("input",),
    ),
}
"""The roles whose gradients a node's grad_inputs are."""

_OF_LINEAR = {"AddmmBackward0": ("bias", "input"), "MmBackward0": ("input",), "TBackward0": ("weight",)}
"""The same in linear, where the second factor is the weight transposed. The input's gradient comes as a matrix."""


def keys(context: OpContext) -> dict[str, Any]:
    """The keys that the rule writes into the context of a forward operator; empty if there is no word for the
    operator."""
    word, roles = _OPERATORS.get(context.op.__name__, ("", {}))
    if not word or not context.op.name.startswith("aten::"):
        return {}
    names, inputs = context.op.input_names, context.inputs
    positions = {role: names.index(name) for role, name in roles.items()}
    if context.is_forward():
        positions = {role: position for role, position in positions.items() if inputs[position] is not None}
    if "left" in positions and word == "matmul":
        for weight, other in (("right", "left"), ("left", "right")):
            if _is_parameter(inputs[positions[weight]]):
                positions |= {"weight": positions[weight], "input": positions[other]}
                break
    found: dict[str, Any] = {"op_type": word, "roles": positions}
    layout = _layout(word, inputs[positions["input"]]) if "input" in positions else None
    weight_layout = _weight_layout(word, positions, inputs)
    return found | {key: value for key, value in (("layout", layout), ("weight_layout", weight_layout)) if value}


def _layout(word: str, input: Any) -> str | None:
    if input is None:  # in a backward context: it is gone
        return None
    if word == "batch_norm":
        return layouts.channels_first(input.dim())
    if word.startswith(("conv", "max_pool", "avg_pool")):
        whole = 2 + int(word[-2])
        layout = layouts.channels_first(whole)
        return layout if layout is None or input.dim() == whole else layout[1:]
    return None


def _weight_layout(word: str, positions: dict[str, int], inputs: tuple[Any, ...]) -> str | None:
    weight = inputs[positions["weight"]] if "weight" in positions else None
    if weight is None:
        return None
    rank = weight.dim()
    if word.startswith("conv"):
        return ("IO" if "transpose" in word else "OI") + layouts.SPATIAL[rank - 2]
    if word == "linear":
        return layouts.factor(rank, on_the_left=False, transposed=True)
    if word == "matmul":
        return layouts.factor(rank, on_the_left=positions["weight"] == positions["left"], transposed=False)
    return None


def grad_roles(context: OpContext) -> dict[str, int]:
    node = context.backward_op.__name__
    computed = (_OF_LINEAR if context["op_type"] == "linear" else _GRADIENTS).get(node, ())
    roles = context["roles"]
    found = {role: position for position, role in enumerate(computed) if role in roles}
    for role in ("weight", "input"):  # of a factor
        for side in _FACTORS:
            if side in found and role in roles and roles[role] == roles[side]:
                found[role] = found[side]
    return found


def _is_parameter(value: Any) -> bool:
    arrays: Any = arrays_of(value)  # those of PyTorch
    return arrays is not None and bool(arrays.is_parameter(value))
