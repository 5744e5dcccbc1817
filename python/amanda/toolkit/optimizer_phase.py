"""Finds the operators of an optimizer, by the Python frames of the call, at analysis."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import Any

from amanda.core.op_context import OpContext
from amanda.core.tool import ON_DEMAND, Tool
from amanda.driver.identity.frames import outwards
from amanda.toolkit.frameworks import is_tensorflow

__all__ = ["OptimizerPhase", "in_optimizer"]

_OPTIMIZERS = ("torch.optim.", "keras.src.optimizers.")  # modules


class OptimizerPhase(Tool):
    """Sets the key "cupti_profiler.phase" in the contexts of operators that an optimizer runs.

    These are the operators called from `torch.optim` or an optimizer of Keras, or by a method of a user-defined
    optimizer. Operators that run in the closure passed to `step`, such as the model's forward pass, do not belong to the
    optimizer. An operator is identified by its place in the program, so one analysis is valid for all its runs.
    """

    def __init__(self) -> None:
        super().__init__()
        self.add_inst_for_op(self._mark, ops=ON_DEMAND, nested=True)

    def _mark(self, context: OpContext) -> None:
        if in_optimizer(sys._getframe()) or _made_by_optimizer(context):
            context["cupti_profiler.phase"] = "optimizer"


def _made_by_optimizer(context: OpContext) -> bool:
    """True for an operator of a graph of TensorFlow that an optimizer made."""
    if not (context.is_symbolic and is_tensorflow(context)):
        return False
    from amanda.toolkit.parameters import of_tensorflow

    return of_tensorflow.in_optimizer(context)


def in_optimizer(frame: FrameType | None) -> bool:
    """True if an optimizer calls the code in this frame."""
    inner: set[CodeType] = set()
    for outer in outwards(frame):
        if _is_optimizers(outer):
            return not any(code in inner for code in _closures(outer))
        inner.add(outer.f_code)
    return False


def _is_optimizers(frame: FrameType) -> bool:
    if str(frame.f_globals.get("__name__")).startswith(_OPTIMIZERS):
        return True
    torch = sys.modules.get("torch")
    if torch is None:
        return False
    code = frame.f_code
    if not code.co_argcount or code.co_varnames[0] != "self":
        return False
    return isinstance(frame.f_locals.get("self"), torch.optim.Optimizer)


def _closures(frame: FrameType) -> Iterator[CodeType]:
    """The code of what was passed to this frame and can be called: `step` wraps its closure and passes it on."""
    arguments = inspect.getargvalues(frame)
    names = [*arguments.args, *filter(None, [arguments.varargs])]
    for name in names:
        value = arguments.locals.get(name)
        for given in value if isinstance(value, tuple) else (value,):
            code = _code_of(given)
            if code is not None:
                yield code


def _code_of(given: Any) -> CodeType | None:
    """None if it can't be called, or is not written in Python. Trainers pass partial functions, and objects."""
    while isinstance(given, functools.partial):
        given = given.func
    if inspect.ismethod(given):
        given = given.__func__
    if inspect.isfunction(given):
        given = inspect.unwrap(given)
        return given.__code__ if inspect.isfunction(given) else None
    call: Any = getattr(type(given), "__call__", None)  # noqa: B004 -- for its code
    code: CodeType | None = getattr(call, "__code__", None)
    return code
