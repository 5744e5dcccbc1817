"""Watching: what recording and comparing have in common. A routine gets each execution of each operator."""

from __future__ import annotations

import collections
import dataclasses
import functools
import linecache
from collections.abc import Callable, Sequence
from typing import Any

from amanda import OpContext, Run, Tool
from amanda.toolkit import frameworks, locks
from amanda.toolkit.arrays import REASONS
from amanda.toolkit.evidence import Unseen, of_skips
from amanda.toolkit.operators import Access, access_to
from amanda.toolkit.schemas import Sides

from . import values
from .record import ACCUMULATES, Station
from .texts import text_of, why_unreadable

_COLLECTIVES = ("c10d::", "_c10d_functional::")  # they return before their results are there


@dataclasses.dataclass(frozen=True, eq=False)
class Seen:
    """An execution of an operator."""

    tensors: list[Any]  # results, then what it changed in place and does not return
    inputs: list[str]  # texts, of before it ran
    forward: int | None  # of a backward operator: which run of the forward operator it belongs to
    are_views: bool  # results share memory with an input: they can't be replaced
    are_fixed: bool = False  # results can't be replaced at all
    exact: Callable[[], list[Any] | None] | None = None  # what `tensors` are in float64


class Watching(Tool):
    """Calls `_ran` after each outermost operator, forward and backward, but for collectives, and those that return memory
    without values."""

    needs_eager = "its backward operators can't be compared"
    leaves_compiled_out = True

    def __init__(self, name: str, *, float64: bool = False, lines: bool = True) -> None:
        super().__init__(name)
        self._wants_float64, self._lines = float64, lines
        self._lock = locks.lock()
        self._numbers: collections.Counter[int] = collections.Counter()  # of runs of forward operators, by id
        self._unreadable: collections.Counter[str] = collections.Counter()  # results that cannot be read, by reason
        self._unfollowed = 0  # backward operators
        self.add_inst_for_op(self._analyze)
        self.add_inst_for_op(self._analyze_backward, backward=True)

    @property
    def has_compiled(self) -> bool:
        """True if functions that are compiled with torch.compile ran in its scopes, in whatever way."""
        found = self._unseen_log.found(with_taps=True)
        return any(one.reason in ("eager", "opaque", "taps", "refused") for one in found)

    def _unwatched(self) -> list[str]:
        """Sentences about what ran in the tool's scopes, and was not seen as it runs without them."""
        return [one.text for one in self._unseen_log.found(with_taps=True)]

    def _unread(self) -> list[Unseen]:
        with self._lock:
            return of_skips(self._unreadable + collections.Counter(compiled=self._unfollowed), REASONS)

    def _note_unreadable(self, outputs: Sequence[str]) -> None:
        """`outputs`: texts of results. Call it with the lock held."""
        self._unreadable.update(filter(None, map(why_unreadable, outputs)))

    def _ran(self, station: Station, seen: Seen) -> Sequence[Any] | None:
        """Handles one execution. Returns new values of `seen.tensors`, on the CPU; None keeps one value, or all."""
        raise NotImplementedError

    def _accumulated(self, station: Station, seen: Seen) -> Sequence[Any] | None:
        """A gradient was added to that of a leaf: `seen.tensors` is the leaf's `.grad`. Returns as `_ran` does."""
        raise NotImplementedError

    def _analyze(self, context: OpContext) -> None:
        sides = Sides.of(context)
        if sides.is_uninitialized or (
            context.op.name.startswith(_COLLECTIVES) and context.op.__name__ != "wait_tensor"
        ):
            return
        station = _station(context, lines=self._lines)
        written = [station.names.index(name) for name in sides.unreturned]
        read = [i for i, name in enumerate(station.names) if name in sides.read or name in sides.changed]
        access = access_to(context.namespace, context.op.__name__)
        context.insert_before_op(
            self._before,
            with_run=True,
            is_view=station.is_view,
            read=frozenset(read),
            shows_all=not access.hides_inputs,
        )
        exact = (context.op, written) if self._wants_float64 else None
        context.insert_after_op(self._after, inputs=written, with_run=True, station=station, exact=exact, access=access)

    def _analyze_backward(self, context: OpContext) -> None:
        is_leaf = context.backward_op.__name__ == ACCUMULATES
        if is_leaf and not frameworks.is_torch(context):
            return  # it has no `.grad`
        if frameworks.is_compiled(context):
            self._unfollowed += 1
            return  # one for each forward operator, where eager mode has the nodes of autograd
        station = _station(context, lines=self._lines)
        if is_leaf:
            context.insert_before_backward_op(
                self._before_accumulation, grad_outputs=[0], with_run=True, station=station
            )
            context.insert_after_backward_op(self._after_accumulation, grad_inputs=[], with_run=True, station=station)
            return
        access = access_to(context.namespace, context.op.__name__)
        shown: dict[str, Any] = {"grad_outputs": None}
        if not access.shows_both:
            context.insert_before_backward_op(self._before_backward, with_run=True)
            shown = {}
        context.insert_after_backward_op(self._after_backward, with_run=True, station=station, access=access, **shown)

    def _before(self, *inputs: Any, run: Run, is_view: bool, read: frozenset[int], shows_all: bool) -> None:
        shown = inputs if shows_all else [values.UNSHOWN if value is None else value for value in inputs]
        run["inputs"] = [text_of(value, is_overwritten=i not in read) for i, value in enumerate(shown)]
        if self._wants_float64:
            run["values"] = _copied(inputs)
        if is_view:
            run["memory"] = values.memory(inputs)

    def _after(
        self,
        *results: Any,
        run: Run,
        station: Station,
        exact: tuple[Callable[..., Any], list[int]] | None,
        access: Access,
        inputs: tuple[Any, ...] = (),
    ) -> Any:
        are_views = station.is_view and not run.pop("memory").isdisjoint(values.memory(results))
        with self._lock:
            run["number"] = self._numbers[station.op_id]
            self._numbers[station.op_id] += 1
        found = [*values.arrays_in(results), *values.arrays_in(inputs)]
        if access.hides_values:
            found += [values.UNSHOWN for result in results if result is None]
        copies, in_float64 = run.pop("values", None), None
        if exact is not None and copies is not None:
            from . import float64

            in_float64 = functools.partial(float64.results, exact[0], copies, exact[1])
        seen = Seen(found, run.pop("inputs"), None, are_views, not access.can_replace, in_float64)
        replaced = self._ran(station, seen)
        if replaced is None:
            return None
        references = iter(replaced)
        edited = [values.healed(result, references) for result in results]
        for array, reference in zip(values.arrays_in(inputs), references, strict=False):
            if reference is not None:
                values.values_of(array).overwrite(array, reference)
        return edited[0] if len(edited) == 1 else edited or None

    def _before_accumulation(self, gradient: Any, run: Run, station: Station) -> None:
        run.setdefault(_inputs_of(station), []).append([text_of(gradient), text_of(_leaf().grad)])

    def _after_accumulation(self, run: Run, station: Station) -> None:
        leaf, inputs = _leaf(), run[_inputs_of(station)].pop()  # a hook may run it once more inside
        gradients = [] if leaf.grad is None else [leaf.grad]  # a hook may take it
        replaced = self._accumulated(station, Seen(gradients, inputs, None, False, _is_fixed(leaf.grad)))
        if replaced is not None and replaced[0] is not None:
            values.values_of(leaf.grad).overwrite(leaf.grad, replaced[0])

    def _before_backward(self, *grad_outputs: Any, run: Run) -> None:
        run["grad_outputs"] = [text_of(value) for value in grad_outputs]

    def _after_backward(
        self, *results: Any, run: Run, station: Station, access: Access, grad_outputs: tuple[Any, ...] = ()
    ) -> Any:
        inputs = run.pop("grad_outputs", None) or [text_of(value) for value in grad_outputs]
        seen = Seen(list(values.arrays_in(results)), inputs, run.get("number"), False, not access.can_replace)
        replaced = self._ran(station, seen)
        if replaced is None:
            return None
        references = iter(replaced)
        edited = [values.healed(result, references) for result in results]
        return edited[0] if len(edited) == 1 else edited


def is_early(error: BaseException | None) -> bool:
    """True if the error ended a program early."""
    return error is not None and not (isinstance(error, SystemExit) and error.code in (None, 0))


def _station(context: OpContext, *, lines: bool) -> Station:
    op, backward_op = context.op, context.get_backward_op()
    file, _, line = context.source.rpartition(":")
    text = linecache.getline(file, int(line)).strip() if lines and line.isdigit() else ""
    names: tuple[str, ...] = ()
    parameters: tuple[tuple[str, ...], ...] = ()
    if backward_op is None:
        names = tuple(op.input_names)
        parameters = tuple(_names(parameter) for parameter in context.parameter_names)
    elif backward_op.__name__ == ACCUMULATES:
        from amanda.toolkit.torch import parameter_name

        name = parameter_name(_leaf())
        names, parameters = ("gradient", "grad"), ((name,), (name,))
    return Station(
        context.op_id,
        context.get_backward_op_id(),
        f"{op.name}.{op.overload}" if op.overload else op.name,
        backward_op.__name__ if backward_op is not None else "",
        context.module_path,
        context.source,
        text,
        backward_op is None and Sides.of(context).may_be_view,
        frameworks.is_compiled(context),
        names,
        parameters,
    )


def _inputs_of(station: Station) -> str:
    """A key: all leaves that an operator reads share its run."""
    return f"inputs of {station.backward_op_id}"


def _leaf() -> Any:
    from amanda.toolkit.torch import running_leaf  # here: it imports torch

    return running_leaf()


def _is_fixed(gradient: Any) -> bool:
    """True if the gradient is part of a graph, in which it must not change."""
    return gradient is not None and (gradient.requires_grad or gradient.is_inference())


def _names(parameter: str | tuple[str | None, ...] | None) -> tuple[str, ...]:
    return tuple(name or "" for name in (parameter if isinstance(parameter, tuple) else (parameter,)))


def _copied(inputs: Any) -> Any:
    """Copies of the inputs; None if an input is not PyTorch's: float64 is reported for PyTorch's tensors only."""
    if any(values.framework_of(array) != "torch" for array in values.arrays_in(inputs)):
        return None
    from . import tensors  # here: it imports torch

    return tensors.copied(inputs)
