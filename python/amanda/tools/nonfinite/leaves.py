"""Gradients of leaves: what AccumulateGrad receives, and the leaf's `.grad` behind it. Hooks and sums of gradients make
them without an operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from amanda import OpContext
from amanda.toolkit.native import NativeRoutine, natively
from amanda.toolkit.skips import Skips

from .finding import Operand
from .ledger import At, Sighting
from .trails import Trails

INCOMING, ACCUMULATED = "the gradient that reached {}", "the .grad of {} after an accumulation"


class LeafGradients:
    """Schedules and runs the routines. `found(sighting, waits)` gets a gradient that may not be finite. `waits` is true
    if the flag of the gradient can be read at once, and is set."""

    def __init__(self, inf: bool, skips: Skips, trails: Trails, found: Callable[[Sighting, bool], None]) -> None:
        self._inf, self._skips, self._trails, self._found = inf, skips, trails, found

    def analyze(self, context: OpContext, at: At, routine: Callable[[Any], Any], waits: bool) -> None:
        """`routine` makes one that is not called for what C++ can read and is finite."""
        given: dict[str, Any] = {"at": at, "waits": waits, "leaf": _name(at)}
        context.insert_before_backward_op(routine(self._on_incoming), grad_outputs=[0], **given)
        native = natively(context)
        # The gradient that came in was read then.
        accumulated = (
            NativeRoutine(native.keeps_incoming(), self._on_accumulated) if native is not None else self._on_accumulated
        )
        context.insert_after_backward_op(accumulated, grad_inputs=[], grad_outputs=[0], **given)

    def _on_incoming(self, gradient: Any, at: At, waits: bool, leaf: str) -> None:
        __tracebackhide__ = True
        self._look(gradient, at, waits, INCOMING.format(leaf))

    def _on_accumulated(self, grad_outputs: tuple[Any, ...], at: At, waits: bool, leaf: str) -> None:
        __tracebackhide__ = True
        from amanda.toolkit.torch import running_leaf

        from . import tensors

        variable = running_leaf()
        gradient, has_hooks = variable.grad, bool(variable._post_accumulate_grad_hooks)
        if gradient is None or (not has_hooks and tensors.is_view(gradient, [("", grad_outputs[0])])):
            return  # a hook has taken it, or it was read when it came in
        self._look(gradient, at, waits, ACCUMULATED.format(leaf))

    def _look(self, gradient: Any, at: At, waits: bool, what: str) -> None:
        __tracebackhide__ = True
        from amanda.toolkit.torch import current_node

        from . import tensors

        if gradient is None:
            return
        flag = self._skips.read(gradient, tensors.reader(self._inf))
        waits = waits and tensors.is_on_cpu([gradient])
        if flag is None or (waits and not flag):
            return
        operands: list[Operand | None] = [tensors.described("gradient", gradient, waits)]
        flag = tensors.kept(flag)
        sighting = Sighting(at, flag, flag, tuple(filter(None, operands)), (), "", gradient=what)
        if waits:
            known = self._trails.of(gradient) or self._trails.of_edge(current_node(), 0)
            sighting = sighting._replace(trail=known or sighting.trail)
        self._found(sighting, waits)


def _name(at: At) -> str:
    from amanda.toolkit.torch import parameter_name, running_leaf

    name = parameter_name(running_leaf())
    return f"parameter {name!r}" if name else f"a leaf of {at.place.name}"
