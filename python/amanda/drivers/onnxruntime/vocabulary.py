"""The words of ONNX Runtime's operators, those of the optimized graph included.

No word stands for a quantized operator, whose operands are integers, nor for a convolution in blocks
(com.microsoft.nchwc), whose weight is padded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from amanda.core.op_context import OpContext
from amanda.driver import layouts, vocabulary

_X = {"input": "X"}
_DATA = {"input": "data"}
_INPUT = {"input": "input"}
_WEIGHTED = {"input": "X", "weight": "W", "bias": "B"}
_SIDES = {"left": "A", "right": "B"}
_PRODUCT_AND_SUM = {**_SIDES, "bias": "C"}
_NORM = {"input": "X", "weight": "scale", "bias": "B", "mean": "input_mean", "variance": "input_var"}

_CONVOLUTIONS = ("onnx::Conv", "com.microsoft::FusedConv")  # NhwcConv differs in the layout of images only
_NHWC = ("com.microsoft::NhwcConv", "com.microsoft::NhwcFusedConv")
_RANKS = (1, 2, 3)


def _each(roles: vocabulary.Roles, *operators: str) -> dict[str, vocabulary.Roles]:
    return vocabulary.each(roles, *(name if "::" in name else f"onnx::{name}" for name in operators))


class OnnxRuntimeVocabulary(vocabulary.Vocabulary):
    """See the base class."""

    namespace = "onnxruntime"
    words: ClassVar[vocabulary.Words] = {
        **{f"conv{rank}d": _each(_WEIGHTED, *_CONVOLUTIONS, *_NHWC) for rank in _RANKS},
        **{f"conv_transpose{rank}d": _each(_WEIGHTED, "ConvTranspose") for rank in _RANKS},
        "matmul": _each(_SIDES, "MatMul", "com.microsoft::FusedMatMul")
        | _each(_PRODUCT_AND_SUM, "Gemm", "com.microsoft::FusedGemm"),
        "embedding": _each({"input": "indices", "weight": "data"}, "Gather"),
        "batch_norm": _each(_NORM, "BatchNormalization"),
        "layer_norm": _each({"input": "X", "weight": "Scale", "bias": "B"}, "LayerNormalization"),
        "relu": _each(_X, "Relu"),
        "leaky_relu": _each(_X, "LeakyRelu"),
        "elu": _each(_X, "Elu"),
        "selu": _each(_X, "Selu"),
        "gelu": _each(_X, "Gelu", "com.microsoft::Gelu", "com.microsoft::FastGelu"),
        "silu": _each(_X, "Swish"),
        "softplus": _each(_X, "Softplus"),
        "sigmoid": _each(_X, "Sigmoid"),
        "tanh": _each(_INPUT, "Tanh"),
        "softmax": _each(_INPUT, "Softmax"),
        "log_softmax": _each(_INPUT, "LogSoftmax"),
        **{f"max_pool{rank}d": _each(_X, "MaxPool") for rank in _RANKS[1:]},
        **{f"avg_pool{rank}d": _each(_X, "AveragePool") for rank in _RANKS[1:]},
        "mean": _each(_DATA, "ReduceMean"),
        "sum": _each(_DATA, "ReduceSum"),
        "add": _each(_SIDES, "Add"),
        "sub": _each(_SIDES, "Sub"),
        "mul": _each(_SIDES, "Mul"),
        "div": _each(_SIDES, "Div"),
        "cat": _each({"input": "inputs"}, "Concat"),
    }
    weight_layouts: ClassVar[dict[str, str]] = {
        f"{word}{rank}d": channels + layouts.SPATIAL[rank]
        for word, channels in (("conv", "OI"), ("conv_transpose", "IO"))
        for rank in _RANKS
    }

    def word(self, context: OpContext, words: Sequence[str]) -> str:
        """By the rank of a convolution's weight, or of what is pooled."""
        if len(words) == 1:
            return words[0]
        roles = self.words[words[0]][context.op.name]
        value: Any = context.inputs[context.op.input_names.index(roles.get("weight", roles["input"]))]
        rank = None if value is None else self.rank(value)
        return next((word for word in words if rank is not None and word.endswith(f"{rank - 2}d")), words[0])

    def rank(self, value: Any) -> int | None:
        return None if value.shape is None else len(value.shape)

    def is_transposed(self, context: OpContext, word: str, on_the_left: bool) -> bool | None:
        """MatMul has no such attribute."""
        if "1" in (context.attribute("transBatchA"), context.attribute("transBatchB")):
            return None
        return context.attribute("transA" if on_the_left else "transB") == "1"

    def layout(self, context: OpContext, word: str, input: Any) -> str | None:
        rank = self.rank(input)
        if rank is None or not word.startswith(("conv", "max_pool", "avg_pool", "batch_norm")):
            return None
        return layouts.channels_last(rank) if context.op.name in _NHWC else layouts.channels_first(rank)

    def weight_layout(self, context: OpContext, word: str, positions: Mapping[str, int]) -> str | None:
        weight: Any = context.inputs[positions["weight"]]
        layout = super().weight_layout(context, word, positions)
        return layout if layout is not None and self.rank(weight) in (None, len(layout)) else None
