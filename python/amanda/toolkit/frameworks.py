"""Operators of frameworks that a tool has no code for, and of TensorFlow where it cannot be edited."""

from __future__ import annotations

from amanda import _core
from amanda.core.op_context import OpContext
from amanda.toolkit.skips import Skips

__all__ = ["is_eager", "leaves_out", "only_looks"]


def leaves_out(context: OpContext, skips: Skips, *known: str) -> bool:
    """True, and the operator is counted, if it is of none of these frameworks. It runs without the tool."""
    if context.namespace.partition("/")[0] in known:
        return False
    skips.add("elsewhere", context.op.name)
    return True


def is_eager(context: OpContext) -> bool:
    """True for an eager operator of TensorFlow."""
    return context.namespace.startswith("tensorflow/") and context.namespace.endswith("/eager")


def only_looks(context: OpContext, speaker: str, edit: str) -> _core.Error:
    """The error of a tool that edits such an operator."""
    return _core.Error(
        f"[{speaker}] {context.tool.name} can't {edit} {context.op.name}: TensorFlow shows eager operators after they have "
        "run, so that tools can only look at them; decorate the model, or the training step, with tf.function"
    )
