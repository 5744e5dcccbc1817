"""Layers that PyTorch may run as one operator in evaluation, weights and all.

`nn.TransformerEncoderLayer` and `nn.MultiheadAttention` do, where no gradient is needed. A tool that edits their linear
layers while they train would not reach them then, and evaluation would be that of another model.
"""

from __future__ import annotations

from amanda import _core
from amanda.op_context import OpContext

OPS = ("_transformer_encoder_layer_fwd", "_native_multi_head_attention")


def refuse(context: OpContext) -> None:
    """An analysis routine for `OPS`.

    Raises:
        amanda.Error: always.
    """
    raise _core.Error(
        f"[{context.tool.name}] {context.op.name} is a whole layer in one operator, whose weights can't be edited; "
        "call torch.backends.mha.set_fastpath_enabled(False) first"
    )
