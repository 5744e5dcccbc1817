"""Operators of frameworks that a tool has no code for, and of TensorFlow where it cannot be edited."""

from __future__ import annotations

from amanda import _core
from amanda.core.op_context import OpContext
from amanda.driver.registry import vocabulary_of
from amanda.toolkit.skips import Skips

__all__ = ["is_eager", "is_torch", "leaves_out", "only_looks"]


def leaves_out(context: OpContext, skips: Skips, *known: str) -> bool:
    """True, and the operator is counted, if it is of none of these frameworks; if none is given, if no word stands for
    operators of its framework. It runs without the tool."""
    if context.namespace.partition("/")[0] in known or (not known and vocabulary_of(context.namespace) is not None):
        return False
    skips.add("elsewhere", context.op.name)
    return True


def is_torch(context: OpContext) -> bool:
    """True for an operator of PyTorch, eager or compiled: its operands are tensors."""
    return context.namespace.startswith("pytorch/")


def is_eager(context: OpContext) -> bool:
    """True for an eager operator of TensorFlow."""
    return context.namespace.startswith("tensorflow/") and context.namespace.endswith("/eager")


def only_looks(context: OpContext, speaker: str, edit: str) -> _core.Error:
    """The error of a tool that edits such an operator."""
    return _core.Error(
        f"[{speaker}] {context.tool.name} can't {edit} {context.op.name}: TensorFlow shows eager operators after they have "
        "run, so that tools can only look at them; decorate the model, or the training step, with tf.function"
    )
