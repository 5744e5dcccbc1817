"""The names that the paper's programs use (Guan et al.: Amanda, ASPLOS 2024), for what has another name here.

Programs of the paper run as they are; code of this package uses the other names.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from amanda.core import keywords

if TYPE_CHECKING:
    from amanda.core.op_context import OpContext

_T = TypeVar("_T")


def _named(name: str, value: Callable[[OpContext], _T], text: str) -> Callable[[OpContext], _T]:
    def get(context: OpContext) -> _T:
        return value(context)

    get.__name__, get.__qualname__, get.__doc__ = name, f"OpContext.{name}", text
    return get


class PaperNames:
    """The paper's names of an `OpContext`'s properties: ``context.get_inputs()`` is `OpContext.inputs`.

    In a forward context, ``get_backward_op()`` and ``get_backward_op_id()`` return None; the properties raise an error.
    """

    __slots__ = ()

    get_op = _named("get_op", lambda context: context.op, "As `op`.")
    get_op_id = _named("get_op_id", lambda context: context.op_id, "As `op_id`.")
    get_inputs = _named("get_inputs", lambda context: context.inputs, "As `inputs`.")
    get_outputs = _named("get_outputs", lambda context: context.outputs, "As `outputs`.")
    get_grad_outputs = _named("get_grad_outputs", lambda context: context.grad_outputs, "As `grad_outputs`.")
    get_grad_inputs = _named("get_grad_inputs", lambda context: context.grad_inputs, "As `grad_inputs`.")
    get_backward_op = _named(
        "get_backward_op",
        lambda context: context.backward_op if context.is_backward() else None,
        "As `backward_op`, but None in a forward context.",
    )
    get_backward_op_id = _named(
        "get_backward_op_id",
        lambda context: context.backward_op_id if context.is_backward() else None,
        "As `backward_op_id`, but None in a forward context.",
    )


def refuse(given: dict[str, Any], function: Callable[..., None]) -> None:
    """Keywords that `Tool` does not take; the paper's Amanda took ``namespace=``.

    Arguments:
        function: has the keywords that it takes.

    Raises:
        TypeError: there are some.
    """
    if "namespace" in given:
        raise TypeError("[tool] Tool has no namespace= any more: it had no effect; leave it out")
    for name in given:
        keywords.refuse("[tool] Tool", name, function)
