"""NaNSentinel's routines for operators that PyTorch does not run itself: TensorFlow's, and those of compiled functions.

Routines get arrays of any framework there, and a backward operator does not show the values that its forward operator
saved. So each run of an operator notes its inputs and results for its backward operators.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from amanda import OpContext
from amanda.toolkit import Skips, frameworks, locks
from amanda.toolkit.arrays import REASONS, Arrays, arrays_of
from amanda.toolkit.operators import access_to

from . import rules
from .finding import Operand, flattened
from .ledger import At, Named, Sighting
from .unread import Makers, Unread

_UNINITIALIZED = {"Empty"}  # TensorFlow's
_PIPELINES = ("tensorflow::IteratorGetNext", "tensorflow::OptionalGetValue", "tensorflow::DatasetToSingleElement")


class _Elements(NamedTuple):
    """The kinds of elements that an array has and that are not finite."""

    nan: bool
    infinite: bool


class GraphOperators:
    """Schedules and runs the routines. `found(sighting, given)` is called with results that are not finite."""

    def __init__(self, inf: bool, skips: Skips, found: Callable[[Sighting, bool], None]) -> None:
        self._inf, self._skips, self._found = inf, skips, found
        self._infinity = ""  # the place where the latest one was made
        self._lock = locks.lock()  # guards the field below
        self.results = 0  # arrays that were read

    def reset(self) -> None:
        self._infinity = ""
        with self._lock:
            self.results = 0

    # ---- scheduling -------------------------------------------------------------------------------------------------

    def analyze(self, context: OpContext, at: At) -> None:
        assert at.sides is not None
        if at.sides.is_uninitialized or context.op.__name__ in _UNINITIALIZED:
            return
        names = context.op.input_names
        known = {name: found for name, found in zip(names, context.parameter_names, strict=False) if found}
        if at.sides.changed:
            context.insert_before_op(self._on_changed, inputs=at.sides.changed, with_run=True)
        shown: dict[str, Any] = {"inputs": [*at.sides.read, *at.sides.unreturned]}
        if _shows_results_alone(context):
            context.insert_before_op(self._keep_inputs, inputs=at.sides.read, with_run=True)
            shown = {}
        context.insert_after_op(_first(context, self._on_result), with_run=True, at=at, parameters=known, **shown)

    def analyze_backward(self, context: OpContext, at: At) -> None:
        # One operator may take the gradient, and another, of the same run, give what comes of it.
        # Compiled code does not show incoming gradients once more.
        keeps = frameworks.is_compiled(context) or _shows_results_alone(context)
        context.insert_before_backward_op(self._keep_incoming if keeps else self._on_incoming, with_run=True)
        shown: dict[str, Any] = {} if keeps else {"grad_outputs": None}
        context.insert_after_backward_op(_first(context, self._on_gradients), with_run=True, at=at, **shown)

    # ---- running ----------------------------------------------------------------------------------------------------

    def _on_changed(self, *changed: Any, run: Any) -> None:
        self._note(changed, run)

    def _keep_inputs(self, *inputs: Any, run: Any) -> None:
        run["inputs"] = inputs

    def _on_result(
        self, *outputs: Any, at: At, parameters: dict[str, Any], run: Any, inputs: Sequence[Any] = ()
    ) -> None:
        __tracebackhide__ = True
        assert at.sides is not None
        if "inputs" in run:
            inputs, run["inputs"] = run["inputs"], ()
        named = [(f"input {name}", value) for name, value in zip(at.sides.read, inputs, strict=False)]
        results = [(f"output {i}", value) for i, value in enumerate(outputs)]
        results += zip((f"output {name}" for name in at.sides.unreturned), inputs[len(named) :], strict=False)
        self._look(at, results, named, run, parameters)
        self._note(outputs, run)  # the gradient may be computed from it

    def _on_incoming(self, *gradients: Any, run: Any) -> None:
        self._note(gradients, run)

    def _keep_incoming(self, *gradients: Any, run: Any) -> None:
        self._note(gradients, run)
        run["incoming"] = gradients

    def _on_gradients(self, *gradients: Any, at: At, run: Any, grad_outputs: Sequence[Any] | None = None) -> None:
        __tracebackhide__ = True
        if grad_outputs is None:
            grad_outputs, run["incoming"] = run["incoming"], ()
        results = [(f"grad_input {i}", value) for i, value in enumerate(gradients)]
        incoming = [(f"grad_output {i}", value) for i, value in enumerate(grad_outputs)]
        self._look(at, results, incoming, run, {})

    def _look(self, at: At, outputs: Named, inputs: Named, run: Any, parameters: dict[str, Any]) -> None:
        __tracebackhide__ = True
        made = self._elements(value for _, value in outputs)
        with self._lock:
            self.results += len(outputs)
        if not (made.nan or made.infinite):
            return
        had = self._note([value for _, value in inputs], run)
        if not (made.nan or self._inf):
            self._note_infinity(at, outputs, inputs, had.infinite)
            return
        given = had.nan or (self._inf and had.infinite)
        holding = next((name for name, value in inputs if self._has([value])), "").removeprefix("input ")
        parameter = parameters.get(holding)
        sighting = Sighting(
            at,
            True,
            given,
            tuple(_described(outputs)),
            tuple(_described(inputs)),
            parameter if isinstance(parameter, str) else "",
            cause=functools.partial(_cause, at, outputs, inputs, self._inf),
            infinity=self._infinity if had.infinite else "",
            unread="" if given else self._unread(at, inputs),
        )
        self._found(sighting, given)

    def _note_infinity(self, at: At, outputs: Named, inputs: Named, was_given: bool) -> None:
        """Keeps the operator that made some; or that was given some where none that was seen had made any."""
        if was_given and not self._infinity:
            holding = next((name for name, value in inputs if self._elements([value]).infinite), "one")
            self._infinity = f"{at}; {holding} was infinite, and no operator seen here made it so"
        elif not was_given:
            cause = _cause(at, outputs, inputs, True)
            self._infinity = f"{at}{cause and f'; {cause}'}"

    def _unread(self, at: At, inputs: Named) -> str:
        """See `Finding.unread`. TensorFlow has no operands that are left out: None stands for what it does not show."""
        if at.place.name.startswith(_PIPELINES):
            return "the data pipeline, whose operators are shown to no tool"
        is_shown = at.backward_op or not at.place.name.startswith("tensorflow::")  # a gradient may be left out
        hidden = [name for name, value in inputs if value is None and not is_shown]
        for _ in hidden:
            self._skips.add("unshown")
        unread = [f"{name}, which could not be read ({REASONS['unshown']})" for name in hidden]
        return " or ".join([*unread, *Unread(inputs, Makers()).texts])

    def _note(self, values: Sequence[Any], run: Any) -> _Elements:
        """Notes these values, and returns the kinds of elements that the run has been given so far."""
        found = self._elements(values)
        for name, is_there in found._asdict().items():
            if is_there:
                run[name] = True
        return _Elements(*(bool(run.get(name)) for name in _Elements._fields))

    def _has(self, values: Iterable[Any]) -> bool:
        found = self._elements(values)
        return found.nan or (self._inf and found.infinite)

    def _elements(self, values: Iterable[Any]) -> _Elements:
        arrays = [value for value in flattened(values) if arrays_of(value) is not None]
        numbers = [value for value in flattened(values) if isinstance(value, float)]
        found = [one for one in (self._skips.read(array, _elements_of) for array in arrays) if one is not None]
        found += [_Elements(math.isnan(number), math.isinf(number)) for number in numbers]
        return _Elements(any(one.nan for one in found), any(one.infinite for one in found))


def _first(context: OpContext, routine: Any) -> Any:
    """TensorFlow's operators wait for routines that may edit what they take, not for others. So what an operator makes is
    seen before what others make of it."""
    if frameworks.is_compiled(context):
        return routine
    waited_for: Any = lambda *operands, **given: routine(*operands, **given)  # noqa: E731
    waited_for.__name__ = waited_for.__qualname__ = routine.__name__
    return waited_for


def _cause(at: At, outputs: Named, inputs: Named, inf: bool) -> str:
    name = at.backward_op or at.place.name.partition("::")[2].partition(".")[0]
    results = [value for _, value in outputs if arrays_of(value) is not None]
    return next(filter(None, (rules.cause_in_graph(name, value, inputs, inf) for value in results)), "")


def _shows_results_alone(context: OpContext) -> bool:
    """True if a routine after an operator can't be shown its inputs, too."""
    return not access_to(context.namespace, context.op.__name__).shows_both


def _elements_of(array: Any, arrays: Arrays) -> _Elements:
    if not (arrays.is_floating(array) or arrays.is_complex(array)):
        return _Elements(False, False)
    values = arrays.cast(array, arrays.xp.float32) if array.itemsize == 1 else array
    if bool(arrays.xp.isfinite(values).all()):
        return _Elements(False, False)
    return _Elements(bool(arrays.xp.isnan(values).any()), bool(arrays.xp.isinf(values).any()))


def _described(named: Named) -> Iterator[Operand]:
    for name, value in named:
        parts = list(flattened([value]))
        for i, part in enumerate(parts):
            operand = _operand(name if len(parts) == 1 else f"{name}[{i}]", part)
            if operand is not None:
                yield operand


def _operand(name: str, value: Any) -> Operand | None:
    """A description of an operand. None if it is no array and no number."""
    if "torch" in sys.modules and not type(value).__module__.startswith("numpy"):
        from . import tensors

        return tensors.described(name, value, True)
    arrays = arrays_of(value)
    if arrays is None:
        return None
    xp = arrays.xp
    with arrays.quietly():
        head = name, value.dtype.name, tuple(value.shape), "cpu", value.size
        zeros = int(xp.count_nonzero(value == 0))
        if arrays.is_complex(value):
            return Operand(*head, int(xp.isnan(value).sum()), int(xp.isinf(value).sum()), zeros, None, None)
        values = arrays.cast(value, xp.float64)
        finite = values[xp.isfinite(values)]
        low, high = arrays.extremes(finite) if finite.size else (None, None)
        return Operand(*head, int(xp.isnan(values).sum()), int(xp.isinf(values).sum()), zeros, low, high)
