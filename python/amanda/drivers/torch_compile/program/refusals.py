"""The reasons why an operator of a compiled program cannot be replaced, or an operand cannot be edited."""

from __future__ import annotations

from typing import Any

import torch

from amanda import _core
from amanda.drivers.torch_compile.program import aliasing, symbols
from amanda.drivers.torch_compile.program.calls import Call, Ref

_VIEW = "and a value put in its place would no longer share memory with "
_NO_ALLOW_VIEW = " (allow_view=True has no effect on compiled code)"
_FUNCTION = (
    "it is the backward of a torch.autograd.Function, which is a part of the compiled code; open the scope with "
    'compiled="eager" to replace it'
)


class Refusal:
    """See `refuse` of amanda._core.OpSite."""

    def __init__(self, call: Call, is_backward: bool) -> None:
        self._call, self._is_backward = call, is_backward

    def __call__(self, point: str, position: int) -> str | None:
        if self._is_backward:
            return self._backward(point, position)
        return self._late_writes(point) or (
            self._argument(position) if point == "before" else self._result(point, position)
        )

    # ---- forward ------------------------------------------------------------------------------------------------------

    def _late_writes(self, point: str) -> str | None:
        namespace, _, name = self._call.name.partition("::")
        if point != "replace" and namespace == "c10d" and name.endswith("_"):
            return "it writes to tensors that its schema calls read-only, maybe after it has returned"
        return None

    def _argument(self, position: int) -> str | None:
        call = self._call
        if call.args is None or position >= len(call.args):
            return None
        if not _is_tensors(call.fakes[position]):
            return f"it is {_described(call.fakes[position])}, which is fixed when the program is compiled"
        if not _has_ref(call.args[position]) or symbols.is_number(call.fakes[position]):
            return "it is a number, which is fixed when the program is compiled"
        if position in aliasing.undeclared_writes(call):
            return "the operator writes to it although its schema calls it read-only"
        if position in call.mutated and isinstance(call.fakes[position], list | tuple):
            return "the operator writes to the tensors of this list"
        if position in call.mutated and _changes_metadata(call):
            return "the operator changes its shape or storage in place"
        if call.result_is_view and position == viewed(call):
            return f"the operator's result is a view of it, {_VIEW}the program's tensor{_NO_ALLOW_VIEW}"
        return None

    def _result(self, point: str, position: int) -> str | None:
        call = self._call
        if point == "replace" and any(isinstance(value, torch.SymFloat) for value in call.fakes):
            return "one of its operands is a number that is no integer, and known only when the program runs"
        if _changes_metadata(call):
            return "it changes its tensor's shape or storage in place; no other value can replace its result"
        if call.result_is_view:
            return f"its result is a view, {_VIEW}the operator's input{_NO_ALLOW_VIEW}"
        if any(isinstance(call.fakes[i], list | tuple) for i in call.mutated):
            return "it writes to the tensors of a list"
        outputs = call.outputs if point == "replace" else call.outputs[position : position + 1]
        other = next((value for value in outputs if not _is_tensors(value)), None)
        return other if other is None else f"its result is {_described(other)}, which is no tensor"

    # ---- backward -----------------------------------------------------------------------------------------------------

    def _backward(self, point: str, position: int) -> str | None:
        if point == "replace":
            return _FUNCTION if self._call.is_function else None
        positions = self._call.differentiable[0 if point == "after" else 1]
        return None if position in positions else "there is no gradient at this position"


def unshown_gradients(call: Call, taps: list[_core.Tap]) -> str:
    """The reason why a routine after the backward operator cannot get what it asks for; "" if it can."""
    after = (tap for tap in taps if tap.is_backward and tap.point == "after")
    if not any(tap.shows_input(i) for tap in after for i in range(len(call.outputs))):
        return ""
    return (
        f"[compile] {call.name}: in compiled code, insert_after_backward_op shows the grad_inputs alone; keep what you "
        "need of the grad_outputs in insert_before_backward_op, with run"
    )


def unseen_in_body(call: Call) -> str:
    """The reason why tools are not shown an operator in a body; "" if they are shown it. There, the results of a tap take
    the place of what it was shown, also if it only looks."""
    arguments, results = call.written_later
    if _changes_metadata(call) or any(isinstance(call.fakes[i], list | tuple) for i in call.mutated):
        return "it changes a shape or storage in place, or writes to a list of tensors"
    if call.result_is_view and (call.returned_as_view or results or viewed(call) in arguments):
        return "its result is a view of a tensor that is written to in place, or returned"
    return ""


def viewed(call: Call) -> int | None:
    """The argument that a result may be a view of."""
    arguments = call.op._schema.arguments
    viewed = (i for i, a in enumerate(arguments) if a.alias_info is not None and not a.alias_info.is_write)
    return next(viewed, None)


def backward_unseen(call: Call) -> str:
    """The reason why the backward operator is not shown; "" if it is shown."""
    if call.writes_seen:
        return "its forward operator writes in place to a tensor that others use, and gradients come to it through them"
    if call.returned_as_view:
        return "the program returns its forward operator's result as a view, which its caller may write to"
    arguments, results = call.written_later
    if call.result_is_view and (results or viewed(call) in arguments):
        return "a view of its forward operator's is written to in place, which autograd allows no tap on"
    return ""


def _changes_metadata(call: Call) -> bool:
    return torch.Tag.inplace_view in call.op.tags


def _is_tensors(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return bool(value) and all(member is None or isinstance(member, torch.Tensor) for member in value)
    return isinstance(value, torch.Tensor)


def _has_ref(arg: Any) -> bool:
    return any(map(_has_ref, arg)) if isinstance(arg, list | tuple) else isinstance(arg, Ref)


def _described(value: Any) -> str:
    if value is None:
        return "None"
    if isinstance(value, list | tuple):
        return "a list of numbers"
    number = isinstance(value, int | float | complex | torch.SymInt | torch.SymFloat | torch.SymBool)
    return "a number" if number else f"a {type(value).__name__}"
