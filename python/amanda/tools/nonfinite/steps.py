"""Steps: what one run of an operator did to values that are not finite. Imports torch: import it where an operator ran."""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from amanda.toolkit import MEMORY, Place
from amanda.toolkit.arrays import of_torch
from amanda.toolkit.torch import current_node, parameter_name

from . import causes, elements, masks
from .carriers import MOST_RECOMPUTED, Carrier, Step
from .elements import Kinds
from .finding import flattened
from .ledger import At, Named, Run, Sighting
from .links import Link, Trail
from .trails import Trails


class Steps:
    """Makes them, and notes in `trails` how the values came."""

    def __init__(self, inf: bool, trails: Trails) -> None:
        self._inf, self._trails = inf, trails
        self._made: collections.Counter[tuple[Place, str]] = collections.Counter()  # runs, by operator

    def carriers(self, named: Named) -> list[Carrier]:
        found = []
        for name, value in named:
            parts = [*flattened([value])]
            for i, one in enumerate(parts):
                kinds = _kinds(one)
                if kinds:
                    found.append(self._carrier(name if len(parts) == 1 else f"{name}[{i}]", one, kinds))
        return found

    def step(self, run: Run, overwritten: Sequence[Carrier] = ()) -> Step:
        """`overwritten`: the operands that had some, and that the operator has written to."""
        carriers = [*overwritten, *self.carriers(_unchanged(run))]
        results = [(one, _kinds(one)) for one in flattened(value for _, value in run.outputs)]
        made = elements.together(kinds for _, kinds in results)
        value, kinds = next(one for one in results if one[1].nan or (one[1] and not made.nan))
        with of_torch.quietly():
            result = elements.described(of_torch.plain(value), kinds)
        if not carriers:
            return Step(made, [], self._origin(run, made, result))
        main = min(carriers, key=lambda one: (not one.kinds.nan, one.is_mask, one.trail is None))
        names = [main.name, *(one.name for one in carriers if one is not main)]
        is_mask = not made.nan and all(one.is_mask for one in carriers) and _passes_on(run.at, carriers, results)
        carrier = " and ".join(names[:2])
        link = Link(**_place(run.at), carrier=carrier, held=main.held, result=result, is_mask=is_mask)
        return Step(made, carriers, (main.trail or Trail()).then(link, is_mask=is_mask))

    def sighting(self, run: Run, step: Step) -> Sighting:
        """Without what the operands had, and what could not be read."""
        one = Sighting(run.at, True, False, (), (), "", packed=run.packed, trail=step.trail)
        if not step.carriers:
            return one._replace(cause=lambda: step.trail.links[-1].cause)
        inf = self._inf and not step.made.nan
        given = any(carrier.kinds.nan or (self._inf and not carrier.is_mask) for carrier in step.carriers)
        cause = self.cause(run, inf=inf) if not given else ""
        mask = ""
        if not given and not step.made.nan and not cause.endswith("wholly masked"):
            first = step.carriers[0].trail
            mask = f"the mask that {first.links[0].place} wrote" if first is not None else ""
            given = True
        holders = ((carrier.parameter, carrier.memory) for carrier in step.carriers)
        parameter, memory = next(filter(any, holders), ("", ""))
        return one._replace(given=given, cause=lambda: cause, parameter=parameter, memory=memory, mask=mask)

    def note(self, run: Run, trail: Trail) -> list[str]:
        """Keeps it for the operators that get these values. Returns the names of the parameters that have some now."""
        parameters = []
        for position, (_, value) in enumerate(run.outputs):
            for one in flattened([value]):
                if _kinds(one):
                    self._trails.note(of_torch.plain(one), trail)
                    parameters.append(parameter_name(one))
                    if run.at.backward_op:
                        self._trails.note_edge(current_node(), position, trail)
        return [*filter(None, parameters)]

    def found_in(self, value: Any) -> object:
        """The finding to which the values of a tensor belong; None if that is not known."""
        trail = self._trails.of(of_torch.plain(value)) if _kinds(value) else None
        return trail.found if trail is not None else None

    def cause(self, run: Run, *, inf: bool, again: bool = True) -> str:
        """The cause in words, as far as it is confirmed. `again`: the operator may be computed again."""
        at = run.at
        for name, value in run.used:
            if name in run.constants and not bool(torch.isfinite(value) if inf else ~torch.isnan(value)):
                return f"the program wrote {value.item()} for {name}"
        if inf and (number := masks.written(run.used)):
            return f"the program wrote {number}"
        repeatable = again and at.op is not None and at.sides is not None and not at.sides.written
        once_more = (lambda values: at.op(*values)) if repeatable and at.op.name.startswith("aten::") else None
        inputs = [(name, _zeros(value) if name in run.unused else value) for name, value in run.inputs]
        return causes.cause_of(name_of(at), run.outputs, inputs, inf, once_more)

    def _origin(self, run: Run, made: Kinds, result: str) -> Trail:
        key = run.at.key
        self._made[key] += 1
        again = self._made[key] <= MOST_RECOMPUTED
        lowest = masks.lowest(name_of(run.at), run.outputs, run.used) if made == Kinds(negative=True) else ""
        cause = lowest or self.cause(run, inf=self._inf or not made.nan, again=again)
        is_mask = not made.nan and bool(lowest or masks.written(run.used, run.constants))
        is_unused = bool(cause) and causes.is_unused(run.outputs, run.inputs, self._inf or not made.nan)
        link = Link(**_place(run.at), result=result, cause=cause, is_mask=is_mask, is_unused=is_unused)
        return Trail((link,), is_mask=is_mask)

    def _carrier(self, name: str, value: torch.Tensor, kinds: Kinds) -> Carrier:
        trail = self._trails.of(of_torch.plain(value))
        if trail is None and name.startswith("grad_output "):
            trail = self._trails.of_edge(current_node(), int(name.removeprefix("grad_output ").partition("[")[0]))
            name += ", a sum of gradients" if trail is not None else ""
        base = getattr(value, "_base", None)
        parameter = parameter_name(value) or (parameter_name(base) if base is not None else "")
        memory = str(MEMORY.find(value) or "")
        return Carrier(name, kinds, value.numel(), trail, parameter or "", memory, of_torch.is_parameter(value))


def _unchanged(run: Run) -> Named:
    """The operands that it has not written to: in ``x.sub_(x)`` the second one has the result now."""
    if run.at.sides is None or not run.at.sides.changed:
        return run.read
    written = [one for one in flattened(value for _, value in run.outputs) if isinstance(one, torch.Tensor)]
    return [(name, value) for name, value in run.read if not any(_is_same(value, one) for one in written)]


def _zeros(value: Any) -> Any:
    return torch.zeros_like(value) if isinstance(value, torch.Tensor) else value


def _is_same(value: Any, other: torch.Tensor) -> bool:
    if not isinstance(value, torch.Tensor):
        return False
    try:
        return value is other or value.is_set_to(other)
    except (NotImplementedError, RuntimeError):  # sparse, and wrappers
        return False


def name_of(at: At) -> str:
    """The operator's name without namespace; or that of the autograd node."""
    return at.backward_op or at.place.name.partition("::")[2].partition(".")[0]


def _kinds(value: Any) -> Kinds:
    """Those of a value that can be read. Counts nothing."""
    if isinstance(value, torch.Tensor):
        with of_torch.quietly(), contextlib.suppress(Exception):  # its dtype has no such kernels
            if of_torch.why_unreadable(value) is None:
                return elements.kinds_of(of_torch.plain(value))
    return Kinds()


def _place(at: At) -> dict[str, Any]:
    return {**at.place._asdict(), "backward_op": at.backward_op}


def _passes_on(at: At, carriers: Iterable[Carrier], results: Iterable[tuple[Any, Kinds]]) -> bool:
    """True if what the operator made of masks is a mask. One element that it chose of many is none."""
    if at.backward_op or at.op is None:
        return False
    given, made = max(one.elements for one in carriers), max(one.numel() for one, kinds in results if kinds)
    return masks.passes_on(name_of(at), "dim" in at.op.input_names) and not given > made == 1
