"""Groups of PyTorch's operators, for `ops=`: what multiplies by a weight, what normalizes, and so on.

Each group is a tuple of names; add tuples to combine them::

    self.add_inst_for_op(self.analyze, ops=amanda.ops.linear_like + amanda.ops.convolution)

A tool sees the outermost operator among those it asks for. So a group holds what models call, and an operator that is only
called inside one of these need not be in it. In-place forms are operators of their own.

The same vocabulary as rules for `amanda.tools.mapping.MappingTool`: `rules`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from amanda.core.op_context import OpContext

Names = tuple[str, ...]

linear: Final[Names] = ("linear",)
"""`nn.Linear`, and the operators by which `nn.MultiheadAttention` projects."""

matmul: Final[Names] = ("matmul", "mm", "bmm", "mv", "addmm", "addmv", "baddbmm", "addbmm", "_grouped_mm")
"""Products of two matrices. Either may be a weight: GPT-2's Conv1D is `addmm`, ``x @ weight`` is `matmul`, and
`F.grouped_mm`, with which experts of a mixture multiply, is `_grouped_mm`."""

convolution: Final[Names] = ("conv1d", "conv2d", "conv3d")
transposed_convolution: Final[Names] = ("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")

fused_layers: Final[Names] = ("_transformer_encoder_layer_fwd", "_native_multi_head_attention")
"""Whole layers that PyTorch may run as one operator, weights included: `nn.TransformerEncoderLayer` and
`nn.MultiheadAttention` in evaluation mode, where no gradient is needed. ``torch.backends.mha.set_fastpath_enabled(False)``
makes them run as in training."""

linear_like: Final[Names] = linear + matmul + fused_layers
"""All operators by which linear layers multiply by their weight. Some also multiply activations: see `factors`."""

attention: Final[Names] = (
    "scaled_dot_product_attention",
    "_scaled_dot_product_attention_math",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
)
"""`F.scaled_dot_product_attention`, and its implementations where they are called directly."""

normalization: Final[Names] = ("batch_norm", "instance_norm", "layer_norm", "group_norm", "rms_norm")

activation: Final[Names] = (
    *("relu", "relu_", "relu6", "relu6_", "leaky_relu", "leaky_relu_", "prelu", "rrelu", "rrelu_"),
    *("elu", "elu_", "selu", "selu_", "celu", "celu_", "gelu", "gelu_", "silu", "silu_", "mish", "mish_"),
    *("sigmoid", "sigmoid_", "tanh", "tanh_", "softplus", "log_sigmoid", "glu", "threshold", "threshold_"),
    *("hardtanh", "hardtanh_", "hardsigmoid", "hardsigmoid_", "hardswish", "hardswish_", "hardshrink", "softshrink"),
)
"""Pointwise nonlinearities."""

groups: Final[Mapping[str, Names]] = MappingProxyType(
    {
        "linear": linear,
        "matmul": matmul,
        "convolution": convolution,
        "transposed_convolution": transposed_convolution,
        "fused_layer": fused_layers,
        "attention": attention,
        "normalization": normalization,
        "activation": activation,
    }
)
"""The groups, by the names that `kind_of` gives to their members. No operator is in two of them."""

factors: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {
        **dict.fromkeys(linear + convolution + transposed_convolution, ("input", "weight")),
        "matmul": ("self", "other"),
        "mm": ("self", "mat2"),
        "bmm": ("self", "mat2"),
        "mv": ("self", "vec"),
        "addmm": ("mat1", "mat2"),
        "addmv": ("mat", "vec"),
        "baddbmm": ("batch1", "batch2"),
        "addbmm": ("batch1", "batch2"),
        "_grouped_mm": ("self", "mat2"),
    }
)
"""The inputs that an operator multiplies, left and right, by the names that ``inputs=`` takes. In `matmul`, find out which
one is the weight, if any."""

_kinds = {name: kind for kind, names in groups.items() for name in names}


def kind_of(name: str) -> str:
    """The kind of an operator by its `__name__`: a key of `groups`, or "" for an operator that is in none.

    >>> kind_of("addmm")
    'matmul'
    """
    return _kinds.get(name, "")


def _name_and_kind(context: OpContext) -> None:
    context["op_name"] = context.op.__name__
    context["op_kind"] = kind_of(context.op.__name__)


rules: Final[tuple[tuple[str, Callable[[OpContext], None]], ...]] = (("pytorch", _name_and_kind),)
"""For `MappingTool(rules=amanda.ops.rules)`: a dependent tool finds ``context["op_name"]`` ("addmm") and
``context["op_kind"]`` ("matmul", or "")."""
