"""NaNSentinel's routines for operators that PyTorch does not run itself: TensorFlow's, and those of compiled functions.

Routines get arrays of any framework there, and a backward operator does not show the values that its forward operator
saved. So each run of an operator notes its inputs and results for its backward operators.
"""

from __future__ import annotations

import functools
import math
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from amanda import OpContext
from amanda.toolkit import Skips, frameworks, locks
from amanda.toolkit.arrays import REASONS, Arrays, arrays_of
from amanda.toolkit.operators import VariableValue, access_to, origins_of

from . import rules
from .array_steps import CONSTANT, ArraySteps, Operands, keep_saved
from .finding import Operand, flattened
from .ledger import At, Named, Sighting, unused
from .links import Link, Trail
from .recomputed import again_of
from .unread import Makers, Unread

if TYPE_CHECKING:
    from amanda.toolkit.tensorflow import Passed

_UNINITIALIZED = {"Empty"}  # TensorFlow's
_PIPELINES = ("tensorflow::IteratorGetNext", "tensorflow::OptionalGetValue", "tensorflow::DatasetToSingleElement")


class _Elements(NamedTuple):
    """The kinds of elements that an array has and that are not finite."""

    nan: bool
    infinite: bool


class GraphOperators:
    """Schedules and runs the routines. `found(sighting, given)` is called with results that are not finite, and
    `infinite(at, link)` with infinities that do not count, where they were made. In TensorFlow it follows values."""

    def __init__(
        self,
        inf: bool,
        skips: Skips,
        found: Callable[[Sighting, bool], None],
        infinite: Callable[[At, Link], object],
    ) -> None:
        self._inf, self._skips, self._found, self._infinite = inf, skips, found, infinite
        self._steps = ArraySteps()
        self._writes: dict[
            tuple[int, str], At
        ] = {}  # by thread and operator that writes to variables: where it ran last
        self._stop: Callable[[], object] | None = None
        self._infinity = ""  # in compiled functions, the place where the latest one was made
        self._lock = locks.lock()  # guards the field below
        self.results = 0  # arrays that were read

    def begin(self) -> None:
        """Asks for sums and writes of eager code, if TensorFlow's driver is loaded."""
        if self._stop is None and "amanda.drivers.tensorflow.port" in sys.modules:
            from amanda.toolkit.tensorflow import listen_to_passed

            self._stop = listen_to_passed(self._on_passed)

    def end(self) -> None:
        """At the end of the scope: nobody sees what is written outside."""
        self._steps.clear()
        if self._stop is not None:
            self._stop()
            self._stop = None

    def reset(self) -> None:
        self.end()
        self._infinity = ""
        with self._lock:
            self.results = 0

    # ---- scheduling -------------------------------------------------------------------------------------------------

    def analyze(self, context: OpContext, at: At) -> None:
        assert at.sides is not None
        if at.sides.is_uninitialized or context.op.__name__ in _UNINITIALIZED:
            return
        names = context.op.input_names
        operands = Operands(
            context.op_id,
            {
                name: found
                for name, found in zip(names, context.parameter_names, strict=False)
                if isinstance(found, str) and found
            },
        )
        if frameworks.is_tensorflow(context):
            operands = self._of_tensorflow(context, at, operands)
        if at.sides.changed:
            context.insert_before_op(self._on_changed, inputs=at.sides.changed, with_run=True)
        shown: dict[str, Any] = {"inputs": [*at.sides.read, *at.sides.unreturned]}
        if _shows_results_alone(context):
            context.insert_before_op(self._keep_inputs, inputs=at.sides.read, with_run=True)
            shown = {}
        context.insert_after_op(_first(context, self._on_result), with_run=True, at=at, operands=operands, **shown)

    def analyze_backward(self, context: OpContext, at: At) -> None:
        # One operator may take the gradient, and another, of the same run, give what comes of it.
        # Compiled code does not show incoming gradients once more.
        keeps = frameworks.is_compiled(context) or _shows_results_alone(context)
        operands = Operands(context.backward_op_id, sums=_sums(context) if frameworks.is_tensorflow(context) else {})
        incoming: Any = self._keep_incoming if keeps else self._on_incoming
        context.insert_before_backward_op(incoming, with_run=True, operands=operands)
        shown: dict[str, Any] = {"operands": operands} | ({} if keeps else {"grad_outputs": None})
        context.insert_after_backward_op(_first(context, self._on_gradients), with_run=True, at=at, **shown)

    def _of_tensorflow(self, context: OpContext, at: At, operands: Operands) -> Operands:
        """Adds what symbols show of operands; asks for sums and writes of eager code, too."""
        from amanda.toolkit.tensorflow import WRITES, is_constant, variable_behind, variable_of

        self.begin()
        named = dict(zip(context.op.input_names, context.inputs, strict=False))
        known = {name: variable_of(symbol) for name, symbol in named.items()}
        operands = operands._replace(
            variables={name: found.key for name, found in known.items() if found is not None},
            constants=frozenset(name for name, symbol in named.items() if is_constant(symbol)),
            again=again_of(context),
        )
        if context.op.__name__ in WRITES:
            operands = operands._replace(writes=context.op.__name__)
            written = variable_behind(context.inputs[0])
            if written is not None:
                read = [name for name in at.sides.read if name in named] if at.sides is not None else []
                shown: dict[str, Any] = {"inputs": read, "names": read}
                context.insert_before_op(self._on_write, at=at, operands=operands, variable=written, **shown)
        return operands

    # ---- running ----------------------------------------------------------------------------------------------------

    def _on_changed(self, *changed: Any, run: Any) -> None:
        self._note(changed, run)

    def _keep_inputs(self, *inputs: Any, run: Any) -> None:
        run["inputs"] = inputs

    def _on_result(self, *outputs: Any, at: At, operands: Operands, run: Any, inputs: Sequence[Any] = ()) -> None:
        __tracebackhide__ = True
        assert at.sides is not None
        if "inputs" in run:
            inputs, run["inputs"] = run["inputs"], ()
        named = [(f"input {name}", value) for name, value in zip(at.sides.read, inputs, strict=False)]
        results = [(f"output {i}", value) for i, value in enumerate(outputs)]
        results += zip((f"output {name}" for name in at.sides.unreturned), inputs[len(named) :], strict=False)
        if left_out := unused(named):
            named = [one for one in named if one[0] not in left_out]
        if operands.writes:
            self._writes[threading.get_ident(), operands.writes] = at
        if _is_followed(at):
            keep_saved(at, results, named, run)
        self._look(at, results, named, run, operands)
        self._note(outputs, run)  # the gradient may be computed from it

    def _on_write(
        self, *values: Any, at: At, operands: Operands, names: Sequence[str], variable: VariableValue
    ) -> None:
        self._steps.write(
            at, [(f"input {name}", one) for name, one in zip(names, values, strict=True)], operands, variable
        )

    def _on_passed(self, passed: Passed) -> None:
        if passed.kind == "sum":
            self._steps.add(passed.given, passed.made)
        elif (at := self._writes.get((threading.get_ident(), passed.operator))) is not None:
            self._steps.write_eagerly(at, passed.given, passed.made)

    def _on_incoming(self, *gradients: Any, operands: Operands, run: Any) -> None:
        self._note(gradients, run)
        self._steps.incoming(gradients, operands, run)

    def _keep_incoming(self, *gradients: Any, operands: Operands, run: Any) -> None:
        self._note(gradients, run)
        run["incoming"] = gradients

    def _on_gradients(
        self, *gradients: Any, at: At, operands: Operands, run: Any, grad_outputs: Sequence[Any] | None = None
    ) -> None:
        __tracebackhide__ = True
        if grad_outputs is None:
            grad_outputs, run["incoming"] = run["incoming"], ()
        results = [(f"grad_input {i}", value) for i, value in enumerate(gradients)]
        incoming = [(f"grad_output {i}", value) for i, value in enumerate(grad_outputs)]
        self._look(at, results, incoming, run, operands)

    def _look(self, at: At, outputs: Named, inputs: Named, run: Any, operands: Operands) -> None:
        __tracebackhide__ = True
        made = self._elements(value for _, value in outputs)
        with self._lock:
            self.results += len(outputs)
        if not (made.nan or made.infinite):
            if _is_followed(at):
                self._steps.forget((value for _, value in outputs), operands)
            return
        had = self._note([value for _, value in inputs], run)
        counts = made.nan or self._inf
        trail = self._follow(at, outputs, inputs, run, operands, counts) if _is_followed(at) else Trail()
        if not counts:
            if not trail.links:
                self._note_infinity(at, outputs, inputs, had.infinite)
            return
        given = had.nan or (self._inf and had.infinite)
        holding = next((name for name, value in inputs if self._has([value])), "").removeprefix("input ")
        sighting = Sighting(
            at,
            True,
            given,
            tuple(_described(outputs)),
            tuple(_described(inputs)),
            operands.parameters.get(holding, ""),
            memory=CONSTANT if given and holding in operands.constants else "",
            cause=functools.partial(self._cause, at, outputs, inputs, operands, run),
            infinity=self._infinity if had.infinite else "",
            unread="" if given else self._unread(at, inputs),
            trail=trail,
        )
        self._found(sighting, given)

    def _follow(self, at: At, outputs: Named, inputs: Named, run: Any, operands: Operands, counts: bool) -> Trail:
        """Notes how the values came. `counts`: they are a finding, or come from one."""
        step = self._steps.step(at, outputs, inputs, operands, run)
        found = step.trail.found or (at.key if counts else None)
        self._steps.note(at, outputs, operands, step.trail._replace(found=found), run)
        if not (counts or step.carriers):
            self._infinite(at, step.trail.links[0])
        return step.trail

    def _cause(self, at: At, outputs: Named, inputs: Named, operands: Operands, run: Any) -> str:
        if _is_followed(at):
            return self._steps.cause(at, outputs, inputs, operands, run, inf=self._inf)
        return _cause(at, outputs, inputs, self._inf)

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


def _is_followed(at: At) -> bool:
    return at.place.name.startswith("tensorflow::")


def _sums(context: OpContext) -> dict[str, list[int]]:
    """By gradient that comes in: the operators whose results it is the sum of."""
    from amanda.toolkit.tensorflow import summands_of

    found = {}
    for i, symbol in enumerate(context.grad_outputs):
        origins = [origin for one in summands_of(symbol) for origin in origins_of(one) or ()]
        found[f"grad_output {i}"] = [origin.op_id for origin in origins if origin.op_id is not None]
    return {name: ids for name, ids in found.items() if ids}


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
