"""Why a path ends at an operator: by what the operator is."""

from __future__ import annotations

REASONS = {
    "detach": "detach() returns a tensor without a path",
    "no_grad": "it ran under no_grad",
    "inference_mode": "it ran under inference_mode",
    "data": "it reads the memory through .data or numpy(), past autograd",
    "integer": "its result is of integers, which have no gradient",
    "boolean": "its result is of booleans, which have no gradient",
    "leaf": "it writes to a leaf in place",
    "frozen": "the parameter required no gradient when it ran",
    "checkpoint": "a reentrant checkpoint whose inputs require no gradient; use_reentrant=False records it",
    "function": "an autograd.Function returns no gradient",
    "not differentiable": "its result requires no gradient",
    "unused": "no operator that was seen used it",
    "item": "the values leave PyTorch there",
    "outside the loss": "the loss uses nothing that comes from its result",
    "zero derivative": "its derivative is zero everywhere",
    "overwritten": "it overwrites the values",
    "factor": "the gradient is multiplied by zeros there",
    "starts at zero": "the gradient is multiplied by a parameter that is all zeros",
    "masked": "it selects other values wherever there is a gradient",
    "saturated": "its input is where its derivative is zero, wherever there is a gradient",
    "saved output": "a result that it has saved for the backward pass was overwritten through .data",
    "backward": "its backward operator returns zeros",
    "loss": "the gradient that the backward pass began with is zero",
    "inputs": "backward(inputs=...) asked for other gradients",
    "no forward pass": "the operators that made the loss were not seen",
    "not seen": "which operator ended it was not looked at: values are followed in the first passes alone",
    "stop_gradient": "tf.stop_gradient returns a tensor without a path",
    "flat": "its derivative is zero everywhere, which TensorFlow returns as None",
    "no gradient": "TensorFlow has no gradient of it",
    "custom_gradient": "the function of tf.custom_gradient returns no gradient",
    "tape": "no tape recorded it: it ran outside of the tape, or in stop_recording()",
    "not trainable": "its trainable is False, and a tape watches it only by tape.watch(variable)",
    "no variable": "a tensor is no tf.Variable, and a tape follows it only after tape.watch(tensor); a variable stays "
    "one if it is changed by assign()",
    "not watched": "the tape did not watch it: it was not read while the tape recorded, or watch_accessed_variables is "
    "False",
    "not seen in TensorFlow": "the tape watched it, and which operator ended the path was not seen: functions that eager "
    "code calls, and later runs of its operators, are not followed",
    "where is not seen": "at which operator it became zero was not seen: operators in loops, and functions that eager code "
    "calls, are not followed",
    "optimizer": "it is in no group of an optimizer that took a step",
    "lr": "its learning rate was 0 in all steps",
    "cleared": "all gradients of its optimizer were cleared, or set to zero, between backward() and step()",
}
"""By reason: in words."""

NO_DERIVATIVE = {
    *("zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "empty_like", "nextafter", "histc", "frexp"),
}
"""Operators with results of floating point numbers that have no derivative."""

_FLAT = {
    *("sign", "sgn", "round", "floor", "ceil", "trunc", "fix", "floor_divide", "heaviside", "bernoulli"),
    "poisson",
}
_OVERWRITES = {"zero_", "fill_", "copy_", "normal_", "uniform_", "random_", "bernoulli_", "exponential_"}
_PRODUCTS = {
    *(
        "mul",
        "div",
        "true_divide",
        "matmul",
        "mm",
        "bmm",
        "addmm",
        "baddbmm",
        "linear",
        "bilinear",
        "einsum",
        "dot",
        "mv",
    ),
    *("conv1d", "conv2d", "conv3d", "convolution", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d"),
    *("scaled_dot_product_attention", "embedding_bag", "addcmul", "lerp", "prod", "outer", "vdot", "inner", "dropout"),
}
_MASKS = {"where", "masked_fill", "masked_select", "masked_scatter", "index_put", "index_fill", "triu", "tril"}
_SATURATES = {
    *("relu", "relu6", "threshold", "clamp", "clip", "clamp_min", "clamp_max", "hardtanh", "hardsigmoid", "hardswish"),
    *("sigmoid", "tanh", "softmax", "maximum", "minimum", "max", "min", "amax", "amin", "leaky_relu", "elu", "gelu"),
    *("silu", "log_softmax", "max_pool1d", "max_pool2d", "max_pool3d", "hardshrink", "softshrink"),
}
LEAVES_PYTORCH = {
    **dict.fromkeys(("item", "_local_scalar_dense", "is_nonzero"), "as a number of Python"),
    **dict.fromkeys(("resolve_conj", "resolve_neg"), "by tolist() or numpy()"),
    **dict.fromkeys(("equal", "allclose"), "as a comparison"),
}
"""Operators whose result is no tensor, and those that `tolist` and `numpy` call last."""


_IN_TENSORFLOW = {
    **dict.fromkeys(
        ("Mul", "RealDiv", "Div", "DivNoNan", "MulNoNan", "MatMul", "BatchMatMul", "BatchMatMulV2"), "factor"
    ),
    **dict.fromkeys(
        ("BatchMatMulV3", "Einsum", "Conv2D", "Conv3D", "DepthwiseConv2dNative", "Prod", "Square"), "factor"
    ),
    **dict.fromkeys(("Pow", "Conv2DBackpropInput", "SparseMatMul"), "factor"),
    **dict.fromkeys(("Select", "SelectV2", "MatrixBandPart", "GatherV2", "ResourceGather", "StridedSlice"), "masked"),
    **dict.fromkeys(
        ("Relu", "Relu6", "LeakyRelu", "Elu", "Selu", "Sigmoid", "Tanh", "Softmax", "Softplus"), "saturated"
    ),
    **dict.fromkeys(("LogSoftmax", "Maximum", "Minimum", "ClipByValue", "Max", "Min", "MaxPool"), "saturated"),
    **dict.fromkeys(("Sign", "ZerosLike"), "zero derivative"),
}


def of_zero_in_tensorflow(op: str) -> str:
    """As `of_zero`, of an operator of TensorFlow."""
    return _IN_TENSORFLOW.get(op, "backward")


def of_zero(op: str) -> str:
    """Why an operator's backward operator returned zeros, though its gradient was not zero."""
    plain = op.removesuffix("_")
    if op in _OVERWRITES:
        return "overwritten"
    for reason, names in (
        ("zero derivative", _FLAT),
        ("factor", _PRODUCTS),
        ("masked", _MASKS),
        ("saturated", _SATURATES),
    ):
        if plain in names:
            return reason
    return "backward"
