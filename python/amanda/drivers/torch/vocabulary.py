"""The words of PyTorch's operators."""

from __future__ import annotations

import sys
from typing import Any, ClassVar

from amanda import ops as amanda_ops
from amanda.core.op_context import OpContext
from amanda.driver import layouts, vocabulary

_SELF = {"input": "self"}
_WEIGHTED = {"input": "input", "weight": "weight", "bias": "bias"}
_NORM = {**_WEIGHTED, "mean": "running_mean", "variance": "running_var"}
_SIDES = {"left": "self", "right": "other"}
_BIASES = {"_grouped_mm": {"bias": "bias"}} | {name: {"bias": "self"} for name in amanda_ops.matmul if "add" in name}

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


def _each(roles: vocabulary.Roles, *operators: str) -> dict[str, vocabulary.Roles]:
    return vocabulary.each(roles, *(f"aten::{operator}" for operator in operators))


def _product(name: str) -> vocabulary.Roles:
    left, right = amanda_ops.factors[name]
    return {"left": left, "right": right, **_BIASES.get(name, {})}


class TorchVocabulary(vocabulary.Vocabulary):
    """See the base class."""

    namespace = "pytorch"
    words: ClassVar[vocabulary.Words] = {
        **{word: _each(_WEIGHTED, word) for word in amanda_ops.convolution + amanda_ops.transposed_convolution},
        "linear": _each(_WEIGHTED, "linear"),
        "matmul": {f"aten::{name}": _product(name) for name in amanda_ops.matmul},
        "embedding": _each({"input": "indices", "weight": "weight"}, "embedding"),
        "batch_norm": _each(_NORM, "batch_norm"),
        "layer_norm": _each(_WEIGHTED, "layer_norm"),
        **{
            word: _each(_SELF, word, f"{word}_")
            for word in ("relu", "relu6", "leaky_relu", "elu", "selu", "gelu", "silu", "sigmoid", "tanh")
        },
        **{
            word: _each(_SELF, word)
            for word in ("softplus", "softmax", "log_softmax", "max_pool2d", "max_pool3d", "avg_pool2d", "avg_pool3d")
        },
        **{word: _each(_SELF, word) for word in ("mean", "sum")},
        **{word: _each(_SIDES, word, f"{word}_") for word in ("add", "sub", "mul", "div")},
        "cat": _each({"input": "tensors"}, "cat"),
    }
    weight_layouts: ClassVar[dict[str, str]] = {
        f"{word}{count}d": channels + spatial
        for word, channels in (("conv", "OI"), ("conv_transpose", "IO"))
        for count, spatial in list(layouts.SPATIAL.items())[1:]
    }

    def rank(self, value: Any) -> int | None:
        return int(value.dim())

    def is_parameter(self, context: OpContext, position: int) -> bool:
        """A parameter, or a view of one."""
        value: Any = context.inputs[position]
        parameter: Any = sys.modules["torch"].nn.Parameter
        return isinstance(value, parameter) or isinstance(getattr(value, "_base", None), parameter)

    def is_transposed(self, context: OpContext, word: str, on_the_left: bool) -> bool | None:
        return word == "linear"

    def layout(self, context: OpContext, word: str, input: Any) -> str | None:
        if input is None:  # in a backward context: it is gone
            return None
        if word == "batch_norm":
            return layouts.channels_first(input.dim())
        if word.startswith(("conv", "max_pool", "avg_pool")):
            whole = 2 + int(word[-2])
            layout = layouts.channels_first(whole)
            return layout if layout is None or input.dim() == whole else layout[1:]
        return None

    def grad_roles(self, context: OpContext) -> dict[str, int]:
        node = context.backward_op.__name__
        computed = (_OF_LINEAR if context["op_type"] == "linear" else _GRADIENTS).get(node, ())
        roles = context["roles"]
        found = {role: position for position, role in enumerate(computed) if role in roles}
        for role in ("weight", "input"):  # of a factor
            for side in _FACTORS:
                if side in found and role in roles and roles[role] == roles[side]:
                    found[role] = found[side]
        return found
