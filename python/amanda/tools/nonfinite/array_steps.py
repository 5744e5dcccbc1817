"""ArraySteps: what one run of an operator of TensorFlow did to values that are not finite."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from amanda.toolkit.arrays import arrays_of, known
from amanda.toolkit.operators import VariableValue

from . import elements, rules
from .array_trails import ArrayTrails, is_view
from .carriers import MOST_RECOMPUTED, NOBODY, Carrier, Step
from .elements import Kinds
from .finding import flattened
from .ledger import At, Named
from .links import Link, Trail
from .recomputed import Again

CONSTANT = "a constant of the program"
_NO_GRADIENT = "a gradient that no operator seen here produced: sums of gradients are no operators"
_NUMBER = "a number of {}, which is not followed"
_DROPPED = "an input with such values, of which there were too many to follow them all"
_PASSES_MASKS = {
    *(
        "Select",
        "SelectV2",
        "Add",
        "AddV2",
        "Sub",
        "Cast",
        "Transpose",
        "Tile",
        "BroadcastTo",
        "ConcatV2",
        "Pack",
        "PadV2",
    ),
    *("MatrixBandPart", "Slice", "StridedSlice", "GatherV2", "Identity", "Reshape", "ExpandDims", "Squeeze", "Fill"),
}
"""Operators whose results have elements of an input, or a sum with one."""


class Operands(NamedTuple):
    """The facts about an operator that its analysis finds."""

    op_id: int | None = None  # of a backward operator its own
    parameters: Mapping[str, str] = {}  # by input: the variable that it is
    variables: Mapping[str, object] = {}  # the same, as drivers call them
    constants: frozenset[str] = frozenset()  # inputs that the program wrote
    sums: Mapping[str, Sequence[int]] = {}  # by gradient: the operators whose results it is the sum of
    writes: str = ""  # its name, if it writes to a variable
    again: Again | None = None  # computes it in float64, from all inputs; None if that is not known


class ArraySteps:
    """Makes them, and keeps how the values came."""

    def __init__(self) -> None:
        self._trails = ArrayTrails()
        self._latest: dict[int | None, Trail] = {}  # by operator: of its last run, if that was not finite
        self._written: dict[object, Trail] = {}  # by variable of graphs
        self._made: collections.Counter[object] = collections.Counter()  # runs, by operator

    def clear(self) -> None:
        self._trails.clear()
        self._latest.clear()
        self._written.clear()

    def forget(self, values: Iterable[Any], operands: Operands) -> None:
        """`values`: finite results."""
        self._latest.pop(operands.op_id, None)
        for array in _arrays(values):
            self._trails.forget(array)

    def write(self, at: At, inputs: Named, operands: Operands, variable: VariableValue) -> None:
        """Follows values into a variable that an operator of a graph writes to."""
        carriers = [*self._carriers(inputs, operands)]
        if not carriers:
            self._written.pop(variable.key, None)
            return
        self._written[variable.key] = _then(at, carriers, f"written to parameter {variable.name!r}")

    def write_eagerly(self, at: At, given: Sequence[Any], value: Callable[[], Any]) -> None:
        """The same in eager code, where the memory of a variable is known. `value` reads it."""
        carriers = [*self._carriers([("input value", one) for one in given], Operands())]
        if carriers and _kinds(array := value()):
            self._trails.note(array, _then(at, carriers, "written to a variable"))

    def add(self, given: Sequence[Any], total: Callable[[], Any]) -> None:
        """Gradients that were added up in eager code. `total` reads their sum."""
        if not any(map(_kinds, given)):
            return
        trails = [trail for one in given if _kinds(one) and (trail := self._trails.of(one)) is not None]
        if trails:
            self._trails.note(total(), trails[0], is_sum=True)

    def incoming(self, gradients: Sequence[Any], operands: Operands, run: Any) -> None:
        """Keeps which gradients that the forward operator's results got are not finite."""
        found = [*self._carriers([(f"grad_output {i}", one) for i, one in enumerate(gradients)], operands)]
        if found:
            run["incoming carriers"] = found

    def step(self, at: At, outputs: Named, inputs: Named, operands: Operands, run: Any) -> Step:
        """The step of a run whose results are not finite. `run`: the state of the forward operator's run."""
        carriers = [*self._carriers(inputs, operands)]
        value, kinds = _first(outputs)
        made = elements.together(_kinds(one) for one in _arrays(value for _, value in outputs))
        with known(value).quietly():
            result = elements.described(value, kinds)
        if not at.backward_op and carriers and is_view(value, _arrays(given for _, given in inputs)):
            main = _main(carriers)
            return Step(made, carriers, main.trail or _begun(at, main, result))
        if at.backward_op and not carriers:
            carriers = list(run.get("incoming carriers", ()))  # of another operator of the same gradient
        cause = self._cause(at, outputs, inputs, operands, run, made) if not carriers else ""
        if at.backward_op and not carriers and not cause:
            carriers = list(run.get("carriers", ()))  # of the forward operator
        if not carriers:
            return Step(made, [], self._origin(at, outputs, inputs, result, cause))
        is_mask = not made.nan and all(one.is_mask for one in carriers) and _name(at) in _PASSES_MASKS
        step = Step(made, carriers, _then(at, carriers, result, _masked_rows(at, value, inputs), is_mask=is_mask))
        if not at.backward_op:
            run["carriers"] = [
                *(one._replace(name=f"forward {one.name}") for one in carriers),
                *self._results(outputs, step.trail),
            ]
        return step

    def note(self, at: At, outputs: Named, operands: Operands, trail: Trail, run: Any) -> None:
        """Keeps it for the operators that get these values."""
        self._latest[operands.op_id] = trail
        for array in _arrays(value for _, value in outputs):
            if _kinds(array):
                self._trails.note(array, trail)
        if not at.backward_op and "carriers" not in run:
            run["carriers"] = [*self._results(outputs, trail)]

    def cause(self, at: At, outputs: Named, inputs: Named, operands: Operands, run: Any, *, inf: bool) -> str:
        """The cause in words, as far as it is confirmed."""
        results = [*_arrays(value for _, value in outputs)]
        found = (
            (rules.cause_of_saved(run["saved"], one, inputs, inf) if "saved" in run else "")
            if at.backward_op
            else _masked_rows(at, one, inputs) or rules.cause_in_graph(_name(at), one, inputs, inf, operands.again)
            for one in results
        )
        return next(filter(None, found), "")

    def _cause(self, at: At, outputs: Named, inputs: Named, operands: Operands, run: Any, made: Kinds) -> str:
        self._made[at.key] += 1
        if self._made[at.key] > MOST_RECOMPUTED:
            operands = operands._replace(again=None)
        return self.cause(at, outputs, inputs, operands, run, inf=not made.nan)

    def _origin(self, at: At, outputs: Named, inputs: Named, result: str, cause: str) -> Trail:
        is_unused = bool(cause and at.backward_op) and _is_unused(outputs, inputs)
        return Trail((Link(**_place(at), result=result, cause=cause, is_unused=is_unused),))

    def _carriers(self, named: Named, operands: Operands) -> Iterator[Carrier]:
        for name, value in named:
            parts = [*flattened([value])]
            for i, one in enumerate(parts):
                kinds = _kinds(one)
                if kinds:
                    yield self._carrier(name if len(parts) == 1 else f"{name}[{i}]", name, one, kinds, operands)

    def _carrier(self, text: str, name: str, array: Any, kinds: Kinds, operands: Operands) -> Carrier:
        plain = name.removeprefix("input ")
        parameter = operands.parameters.get(plain, "")
        trail, is_sum = self._trails.of(array) or self._written.get(operands.variables.get(plain)), False
        if trail is None:
            trail = next((self._latest[one] for one in operands.sums.get(name, ()) if one in self._latest), None)
            is_sum = trail is not None
        text += ", a sum of gradients" if is_sum or self._trails.is_sum(array) else ""
        memory = "" if trail is not None or parameter else self._held(name, array, plain in operands.constants)
        return Carrier(text, kinds, array.size, trail, parameter, memory, bool(parameter))

    def _held(self, name: str, array: Any, is_constant: bool) -> str:
        if is_constant:
            return CONSTANT
        if self._trails.has_dropped:
            return _DROPPED
        if not array.shape and array.dtype.kind == "V":  # in eager code routines get a copy
            return _NUMBER.format(array.dtype)
        return _NO_GRADIENT if name.startswith("grad_output ") else NOBODY

    def _results(self, outputs: Named, trail: Trail) -> Iterator[Carrier]:
        """The results of a forward operator, as its backward operators may have read them."""
        for name, value in outputs:
            for one in _arrays([value]):
                if kinds := _kinds(one):
                    yield Carrier(f"forward {name}", kinds, one.size, trail, "", "", False)


def keep_saved(at: At, outputs: Named, inputs: Named, run: Any) -> None:
    """Keeps where the forward operator had values for which its derivative is not finite, if there are some."""
    found = rules.saved_in_graph(_name(at), [*outputs, *inputs])
    if found:
        run["saved"] = found


def _begun(at: At, main: Carrier, result: str) -> Trail:
    """The trail of a value that a view passes on, and that nobody seen here made."""
    return Trail().then(
        Link(**_place(at), carrier=main.name, held=main.held, result=result, is_mask=main.is_mask), is_mask=main.is_mask
    )


def _then(at: At, carriers: Sequence[Carrier], result: str, cause: str = "", *, is_mask: bool = False) -> Trail:
    main = _main(carriers)
    names = [main.name, *(one.name for one in carriers if one is not main)]
    link = Link(
        **_place(at), carrier=" and ".join(names[:2]), held=main.held, result=result, cause=cause, is_mask=is_mask
    )
    return (main.trail or Trail()).then(link, is_mask=is_mask)


def _main(carriers: Sequence[Carrier]) -> Carrier:
    return min(carriers, key=lambda one: (not one.kinds.nan, one.is_mask, one.trail is None))


def _first(outputs: Named) -> tuple[Any, Kinds]:
    """The first result that has a NaN; if there is none, that is not finite."""
    found = [(one, _kinds(one)) for one in _arrays(value for _, value in outputs)]
    return next((one for one in found if one[1].nan), None) or next(one for one in found if one[1])


def _masked_rows(at: At, result: Any, inputs: Named) -> str:
    if _name(at) not in ("Softmax", "LogSoftmax") or at.backward_op:
        return ""
    scores: Any = dict(inputs).get("input logits")
    if arrays_of(scores) is None or not len(scores.shape):
        return ""
    with known(scores).quietly():
        return elements.wholly_masked(scores == -float("inf"), (-1,), known(result).xp.isnan(result))


def _is_unused(outputs: Named, inputs: Named) -> bool:
    """True if the gradient that a backward operator got is zero at all elements that are not finite now."""
    given: Any = dict(inputs).get("grad_output 0")
    value, _ = _first(outputs)
    if arrays_of(given) is None or given.shape != value.shape:
        return False
    return not bool((given[~known(value).xp.isfinite(value)] != 0).any())


def _arrays(values: Iterable[Any]) -> Iterator[Any]:
    return (one for one in flattened(values) if arrays_of(one) is not None)


def _kinds(value: Any) -> Kinds:
    arrays = arrays_of(value)
    if arrays is None or arrays.why_unreadable(value) is not None:
        return Kinds()
    with arrays.quietly():
        return elements.kinds_of(value)


def _name(at: At) -> str:
    return at.place.name.partition("::")[2].partition(".")[0]


def _place(at: At) -> dict[str, Any]:
    return {**at.place._asdict(), "backward_op": at.backward_op}
