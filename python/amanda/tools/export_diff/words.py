"""Words: one name for an operator of an eager program and for what torch.export makes of it."""

from __future__ import annotations

_SAME = {
    "_to_copy": "to",
    "_unsafe_view": "view",
    "reshape": "view",
    "flatten": "view",
    "unflatten": "view",
    "view_as": "view",
    "reshape_as": "view",
    "movedim": "permute",
    "swapaxes": "transpose",
    "t": "transpose",
    "numpy_t": "permute",
    "expand_as": "expand",
    "clone": "contiguous",
    "_native_batch_norm_legit_no_training": "batch_norm",
    "_native_batch_norm_legit": "batch_norm",
    "native_batch_norm": "batch_norm",
    "native_layer_norm": "layer_norm",
    "native_group_norm": "group_norm",
    "_fused_rms_norm": "rms_norm",
    "_softmax": "softmax",
    "_log_softmax": "log_softmax",
    "special_softmax": "softmax",
    "adaptive_avg_pool1d": "mean",
    "adaptive_avg_pool2d": "mean",
    "_adaptive_avg_pool2d": "mean",
    "max_pool1d_with_indices": "max_pool1d",
    "max_pool2d_with_indices": "max_pool2d",
    "convolution": "conv",
    "conv1d": "conv",
    "conv2d": "conv",
    "conv3d": "conv",
    "addmm": "linear",
    "mm": "matmul",
    "bmm": "matmul",
    "mv": "matmul",
    "chunk": "split",
    "split_with_sizes": "split",
    "tensor_split": "split",
    "true_divide": "div",
    "multiply": "mul",
    "subtract": "sub",
    "concat": "cat",
    "concatenate": "cat",
    "square": "pow",
    "absolute": "abs",
    "greater": "gt",
    "less": "lt",
    "hardtanh": "clamp",
    "relu6": "clamp",
    "clip": "clamp",
    "bitwise_and": "and",
    "logical_and": "and",
    "bitwise_or": "or",
    "logical_or": "or",
    "bitwise_not": "not",
    "logical_not": "not",
    "_and": "and",
}
MOVES = {
    *("view", "transpose", "permute", "unsqueeze", "squeeze", "expand", "contiguous", "slice", "select", "to", "alias"),
    *("detach", "lift_fresh", "split", "unbind", "pad", "roll", "copy", "narrow"),
}
"""The words of operators that only move elements."""


def word_of(op: str) -> str:
    """`op`: "aten::add_" as the eager program calls it, or "add" as in a file. One that works in place has the word of its
    counterpart."""
    name = op.rpartition("::")[2].partition(".")[0].lower()
    name = name if name.startswith("__") else name.rstrip("_")
    name = name.strip("_") if name.startswith("__") else name
    return _SAME.get(name, name)
