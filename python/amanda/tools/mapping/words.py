"""The vocabulary: which operators of which framework one word stands for, and what their inputs are."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from amanda import ops as amanda_ops

Roles = Mapping[str, str]
"""Roles, each with the name of the input that has it: {"input": "input", "weight": "filter"}."""


class Word(NamedTuple):
    """The operators that one word stands for, with the roles of their inputs."""

    pytorch: Mapping[str, Roles]
    tensorflow: Mapping[str, Roles]


def _each(roles: Roles, *operators: str) -> Mapping[str, Roles]:
    return dict.fromkeys(operators, roles)


_SELF = {"input": "self"}
_FEATURES = {"input": "features"}
_INPUT = {"input": "input"}
_WEIGHTED = {"input": "input", "weight": "weight", "bias": "bias"}
_FILTERED = {"input": "input", "weight": "filter"}
_TRANSPOSED = {"input": "out_backprop", "weight": "filter"}  # the gradient of a convolution, used as an operator
_NORM = {**_WEIGHTED, "mean": "running_mean", "variance": "running_var"}
_FUSED_NORM = {"input": "x", "weight": "scale", "bias": "offset", "mean": "mean", "variance": "variance"}
_SELF_OTHER = {"left": "self", "right": "other"}
_X_Y = {"left": "x", "right": "y"}
_BIASES = {"_grouped_mm": {"bias": "bias"}} | {name: {"bias": "self"} for name in amanda_ops.matmul if "add" in name}
_PRODUCTS = {
    name: {"left": left, "right": right, **_BIASES.get(name, {})}
    for name, (left, right) in ((name, amanda_ops.factors[name]) for name in amanda_ops.matmul)
}

VOCABULARY: Final[Mapping[str, Word]] = MappingProxyType(
    {
        "conv1d": Word(_each(_WEIGHTED, "conv1d"), {}),
        "conv2d": Word(_each(_WEIGHTED, "conv2d"), _each(_FILTERED, "Conv2D")),
        "conv3d": Word(_each(_WEIGHTED, "conv3d"), _each(_FILTERED, "Conv3D")),
        "depthwise_conv2d": Word({}, _each(_FILTERED, "DepthwiseConv2dNative")),
        "conv_transpose1d": Word(_each(_WEIGHTED, "conv_transpose1d"), {}),
        "conv_transpose2d": Word(
            _each(_WEIGHTED, "conv_transpose2d"), _each(_TRANSPOSED, "Conv2DBackpropInput", "Conv2DBackpropInputV2")
        ),
        "conv_transpose3d": Word(_each(_WEIGHTED, "conv_transpose3d"), _each(_TRANSPOSED, "Conv3DBackpropInputV2")),
        "linear": Word(_each(_WEIGHTED, "linear"), {}),
        "matmul": Word(
            _PRODUCTS,
            {
                "MatMul": {"left": "a", "right": "b"},
                **_each(_X_Y, "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3"),
            },
        ),
        "bias_add": Word({}, _each({"input": "value", "bias": "bias"}, "BiasAdd", "BiasAddV1")),
        "embedding": Word(
            {"embedding": {"input": "indices", "weight": "weight"}},
            {"ResourceGather": {"input": "indices", "weight": "resource"}},
        ),
        "batch_norm": Word(
            _each(_NORM, "batch_norm"),
            _each(_FUSED_NORM, "FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3"),
        ),
        "layer_norm": Word(_each(_WEIGHTED, "layer_norm"), {}),
        "relu": Word(_each(_SELF, "relu", "relu_"), _each(_FEATURES, "Relu")),
        "relu6": Word(_each(_SELF, "relu6", "relu6_"), _each(_FEATURES, "Relu6")),
        "leaky_relu": Word(_each(_SELF, "leaky_relu", "leaky_relu_"), _each(_FEATURES, "LeakyRelu")),
        "elu": Word(_each(_SELF, "elu", "elu_"), _each(_FEATURES, "Elu")),
        "selu": Word(_each(_SELF, "selu", "selu_"), _each(_FEATURES, "Selu")),
        "gelu": Word(_each(_SELF, "gelu", "gelu_"), {}),
        "silu": Word(_each(_SELF, "silu", "silu_"), {}),
        "softplus": Word(_each(_SELF, "softplus"), _each(_FEATURES, "Softplus")),
        "sigmoid": Word(_each(_SELF, "sigmoid", "sigmoid_"), _each({"input": "x"}, "Sigmoid")),
        "tanh": Word(_each(_SELF, "tanh", "tanh_"), _each({"input": "x"}, "Tanh")),
        "softmax": Word(_each(_SELF, "softmax"), _each({"input": "logits"}, "Softmax")),
        "log_softmax": Word(_each(_SELF, "log_softmax"), _each({"input": "logits"}, "LogSoftmax")),
        "max_pool2d": Word(_each(_SELF, "max_pool2d"), _each(_INPUT, "MaxPool", "MaxPoolV2")),
        "max_pool3d": Word(_each(_SELF, "max_pool3d"), _each(_INPUT, "MaxPool3D")),
        "avg_pool2d": Word(_each(_SELF, "avg_pool2d"), _each({"input": "value"}, "AvgPool")),
        "avg_pool3d": Word(_each(_SELF, "avg_pool3d"), _each(_INPUT, "AvgPool3D")),
        "mean": Word(_each(_SELF, "mean"), _each(_INPUT, "Mean")),
        "sum": Word(_each(_SELF, "sum"), _each(_INPUT, "Sum")),
        "add": Word(_each(_SELF_OTHER, "add", "add_"), _each(_X_Y, "AddV2", "Add")),
        "sub": Word(_each(_SELF_OTHER, "sub", "sub_"), _each(_X_Y, "Sub")),
        "mul": Word(_each(_SELF_OTHER, "mul", "mul_"), _each(_X_Y, "Mul")),
        "div": Word(_each(_SELF_OTHER, "div", "div_"), _each(_X_Y, "RealDiv")),
        "cat": Word({"cat": {"input": "tensors"}}, {"ConcatV2": {"input": "values"}}),
    }
)
"""Words, in PyTorch's spelling, with the operators that they stand for. No operator has two words."""

ROLES: Final = frozenset(
    {"weight", "input"}
    | {role for word in VOCABULARY.values() for operators in word for roles in operators.values() for role in roles}
)


def by_operator(framework: str) -> Mapping[str, tuple[str, Roles]]:
    """The words of a framework's operators, with their roles."""
    return MappingProxyType(
        {
            operator: (word, roles)
            for word, operators in VOCABULARY.items()
            for operator, roles in getattr(operators, framework).items()
        }
    )


def names_of(*words: str) -> list[str]:
    """The operators that words stand for, by their full names: for `Tool.add_inst_for_op`, in any framework.

    >>> names_of("conv2d", "relu")
    ['aten::conv2d', 'tensorflow::Conv2D', 'aten::relu', 'aten::relu_', 'tensorflow::Relu']

    Raises:
        ValueError: there is no such word.
    """
    names: list[str] = []
    for word in words:
        if word not in VOCABULARY:
            raise ValueError(f"[mapping] there is no word {word!r}; there are {', '.join(VOCABULARY)}")
        names += [f"aten::{name}" for name in VOCABULARY[word].pytorch]
        names += tensorflow_names(word)
    return names


def tensorflow_names(*words: str) -> list[str]:
    """The names of TensorFlow among those of `names_of`."""
    return [f"tensorflow::{name}" for word in words for name in VOCABULARY[word].tensorflow]
