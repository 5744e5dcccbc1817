"""Shows the operators of a compiled program to the core."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from amanda import _core
from amanda.drivers.torch_compile.program import backward_ids, refusals
from amanda.drivers.torch_compile.program.calls import Call
from amanda.drivers.torch_compile.view import attach

if TYPE_CHECKING:
    from amanda.drivers.torch_compile.places.places import Place, Places
    from amanda.drivers.torch_compile.program.program import Program


@dataclasses.dataclass(eq=False, slots=True)
class Shown:
    """An operator that tools were shown, or its backward operator."""

    call: Call
    place: Place
    type: int
    site: _core.OpSite
    forward_site: _core.OpSite | None  # of a backward operator
    refuse: Callable[[str, int], str | None]

    @property
    def is_backward(self) -> bool:
        return self.forward_site is not None

    @property
    def id(self) -> int:
        return _id(self.call, self.place, self.is_backward)


#: The argument of `lower`: the operators that have taps, with their taps.
Plans = list[tuple[Shown, list[_core.Tap]]]


class GraphSite:
    """See amanda::GraphSite. `shown` has all that were shown, by number."""

    def __init__(self, program: Program, places: Places, lower: Callable[[Plans], object]) -> None:
        self.backend = attach.COMPILE
        self.shown: list[Shown] = []
        self._program, self._places, self._lower = program, places, lower

    def each_op(self, visitor: _core.GraphVisitor) -> None:
        for call in self._program.calls:
            place = self._places.place_of(call)
            forward = self._site(call, place, None) if call.is_function else self._show(visitor, call, place, None)
            if call.backward and call.backward_unseen:
                visitor.unseen(f"autograd::{call.backward}", call.backward_unseen)
            elif call.backward:
                self._show(visitor, call, place, forward.site)
        for what, reason in self._program.unseen:
            visitor.unseen(what, reason)

    def lower(self, sites: list[tuple[int, list[_core.Tap]]]) -> object:
        return self._lower([(self.shown[index], taps) for index, taps in sites])

    def _show(self, visitor: _core.GraphVisitor, call: Call, place: Place, forward_site: _core.OpSite | None) -> Shown:
        shown = self._site(call, place, forward_site)
        self.shown.append(shown)
        visitor.op(shown.site)
        return shown

    def _site(self, call: Call, place: Place, forward_site: _core.OpSite | None) -> Shown:
        is_backward = forward_site is not None
        refuse = refusals.Refusal(call, is_backward)
        type = attach.intern_backward(call.backward) if is_backward else attach.intern(call.op)
        inputs, outputs = (
            gradients_of(call) if is_backward else ((), ()) if call.is_function else (call.inputs, call.outputs)
        )
        site = _core.OpSite(
            self.backend,
            type,
            _id(call, place, is_backward),
            inputs,
            outputs,
            module_path=place.module_path,
            source=place.source,
            refuse=refuse,
            forward=forward_site,
        )
        return Shown(call, place, type, site, forward_site, refuse)


def _id(call: Call, place: Place, is_backward: bool) -> int:
    return backward_ids.id_of(place.id, call.backward, call.backward_form) if is_backward else place.id


def gradients_of(call: Call) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """The symbols of the incoming and the outgoing gradients: those of the tensors that they belong to."""
    arguments, results = call.differentiable
    grad_outputs = tuple(_gradient(value, i in results) for i, value in enumerate(call.outputs))
    grad_inputs = tuple(_gradient(value, i in arguments) for i, value in enumerate(call.fakes))
    return grad_outputs, grad_inputs


def _gradient(value: Any, exists: bool) -> Any:
    if not exists:
        return None
    if isinstance(value, list | tuple):
        return [member if getattr(member, "requires_grad", False) else None for member in value]
    return value
