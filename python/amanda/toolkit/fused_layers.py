"""Layers that PyTorch may run as one operator in evaluation, including their weights.

`nn.TransformerEncoderLayer` and `nn.MultiheadAttention` do this if no gradient is needed. A tool that edits their
linear layers in training would not see these layers in evaluation, which would then run a different model.
"""

from __future__ import annotations

from amanda import _core, ops
from amanda.core.op_context import OpContext
from amanda.core.tool import Tool

__all__ = ["refuse", "refuse_in"]


def refuse_in(tool: Tool) -> None:
    """Makes such a layer an error in scopes of `tool`."""
    tool.add_inst_for_op(refuse, ops=[f"aten::{name}" for name in ops.fused_layers], optional=True)


def refuse(context: OpContext) -> None:
    """An analysis routine for `amanda.ops.fused_layers`.

    Raises:
        amanda.Error: always.
    """
    raise _core.Error(
        f"[{context.tool.name}] {context.op.name} is a whole layer in one operator, whose weights can't be edited; "
        "call torch.backends.mha.set_fastpath_enabled(False) first"
    )
