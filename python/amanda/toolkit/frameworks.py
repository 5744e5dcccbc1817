"""The framework of an operator: what a tool has code for, and what it can edit there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amanda import _core
from amanda.core.op_context import OpContext
from amanda.driver.registry import access_to, vocabulary_of

if TYPE_CHECKING:
    from amanda.toolkit.skips import Skips  # which imports this module

__all__ = ["is_compiled", "is_tensorflow", "is_torch", "leaves_out", "only_looks", "shows_after_run"]


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


def is_compiled(context: OpContext) -> bool:
    """True for an operator in a function that torch.compile has compiled."""
    return context.is_symbolic and is_torch(context)


def is_tensorflow(context: OpContext) -> bool:
    """True for an operator of TensorFlow, of a graph, a function or eager."""
    return context.namespace.startswith("tensorflow/")


def shows_after_run(context: OpContext) -> bool:
    """True for an operator that tools are shown when it has run, as TensorFlow's eager operators."""
    return not access_to(context.namespace, context.op.__name__).can_replace


def only_looks(context: OpContext, speaker: str, edit: str) -> _core.Error:
    """The error of a tool that edits such an operator."""
    return _core.Error(
        f"[{speaker}] {context.tool.name} can't {edit} {context.op.name}: TensorFlow shows eager operators after they have "
        "run, so that tools can only look at them; decorate the model, or the training step, with tf.function"
    )
