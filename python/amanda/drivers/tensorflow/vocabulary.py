"""The words of TensorFlow's operators. Layouts are given in graphs and functions: eager mode does not show attributes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from amanda.core.op_context import OpContext
from amanda.driver import layouts, vocabulary

_FEATURES = {"input": "features"}
_INPUT = {"input": "input"}
_X = {"input": "x"}
_FILTERED = {"input": "input", "weight": "filter"}
_TRANSPOSED = {"input": "out_backprop", "weight": "filter"}  # the gradient of a convolution, used as an operator
_NORM = {"input": "x", "weight": "scale", "bias": "offset", "mean": "mean", "variance": "variance"}
_SIDES = {"left": "x", "right": "y"}
_TRANSPOSES = {"tensorflow::MatMul": ("transpose_a", "transpose_b")}


def _each(roles: vocabulary.Roles, *operators: str) -> dict[str, vocabulary.Roles]:
    return vocabulary.each(roles, *(f"tensorflow::{operator}" for operator in operators))


class TensorFlowVocabulary(vocabulary.Vocabulary):
    """See the base class."""

    namespace = "tensorflow"
    words: ClassVar[vocabulary.Words] = {
        "conv2d": _each(_FILTERED, "Conv2D"),
        "conv3d": _each(_FILTERED, "Conv3D"),
        "depthwise_conv2d": _each(_FILTERED, "DepthwiseConv2dNative"),
        "conv_transpose2d": _each(_TRANSPOSED, "Conv2DBackpropInput", "Conv2DBackpropInputV2"),
        "conv_transpose3d": _each(_TRANSPOSED, "Conv3DBackpropInputV2"),
        "matmul": _each({"left": "a", "right": "b"}, "MatMul")
        | _each(_SIDES, "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3"),
        "bias_add": _each({"input": "value", "bias": "bias"}, "BiasAdd", "BiasAddV1"),
        "embedding": _each({"input": "indices", "weight": "resource"}, "ResourceGather"),
        "batch_norm": _each(_NORM, "FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3"),
        "relu": _each(_FEATURES, "Relu"),
        "relu6": _each(_FEATURES, "Relu6"),
        "leaky_relu": _each(_FEATURES, "LeakyRelu"),
        "elu": _each(_FEATURES, "Elu"),
        "selu": _each(_FEATURES, "Selu"),
        "softplus": _each(_FEATURES, "Softplus"),
        "sigmoid": _each(_X, "Sigmoid"),
        "tanh": _each(_X, "Tanh"),
        "softmax": _each({"input": "logits"}, "Softmax"),
        "log_softmax": _each({"input": "logits"}, "LogSoftmax"),
        "max_pool2d": _each(_INPUT, "MaxPool", "MaxPoolV2"),
        "max_pool3d": _each(_INPUT, "MaxPool3D"),
        "avg_pool2d": _each({"input": "value"}, "AvgPool"),
        "avg_pool3d": _each(_INPUT, "AvgPool3D"),
        "mean": _each(_INPUT, "Mean"),
        "sum": _each(_INPUT, "Sum"),
        "add": _each(_SIDES, "AddV2", "Add"),
        "sub": _each(_SIDES, "Sub"),
        "mul": _each(_SIDES, "Mul"),
        "div": _each(_SIDES, "RealDiv"),
        "cat": _each({"input": "values"}, "ConcatV2"),
    }
    weight_layouts: ClassVar[dict[str, str]] = {
        "conv2d": "HWIO",
        "conv3d": "DHWIO",
        "depthwise_conv2d": "HWIM",
        "conv_transpose2d": "HWOI",
        "conv_transpose3d": "DHWOI",
    }

    def rank(self, value: Any) -> int | None:
        rank: int | None = value.shape.rank
        return rank

    def is_transposed(self, context: OpContext, word: str, on_the_left: bool) -> bool | None:
        left, right = _TRANSPOSES.get(context.op.name, ("adj_x", "adj_y"))
        return bool(_operation(context).get_attr(left if on_the_left else right))

    def layout(self, context: OpContext, word: str, input: Any) -> str | None:
        operation = _operation(context)
        if operation is None or "data_format" not in operation.node_def.attr:
            return None
        given = operation.get_attr("data_format").decode()
        if word != "bias_add":
            return str(given)
        rank = self.rank(input)  # it takes any rank, and says "NHWC"
        if rank is None:
            return None
        return layouts.channels_first(rank) if given.startswith("NC") else layouts.channels_last(rank)

    def weight_layout(self, context: OpContext, word: str, positions: Mapping[str, int]) -> str | None:
        return None if _operation(context) is None else super().weight_layout(context, word, positions)


def _operation(context: OpContext) -> Any:
    """The tf.Operation; None in eager mode, which has none."""
    outputs = context.outputs if context.has_outputs() else ()
    first = outputs[0] if outputs else None
    return getattr(first, "op", None) if context.is_symbolic else None
