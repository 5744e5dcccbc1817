"""Layers that PyTorch may run as one operator in evaluation, including their weights.

`nn.TransformerEncoderLayer` and `nn.MultiheadAttention` do this if no gradient is needed. A tool that edits their
linear layers in training would not see these layers in evaluation, which would then run a different model.
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
