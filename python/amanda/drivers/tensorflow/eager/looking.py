"""Eager operators, by TensorFlow's callbacks for operators that have run: tools look at them, and cannot edit them.

Before and after routines both run after the operator. Operators that a function or a session runs are not eager: the
callbacks of graphs are ignored.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from amanda import _core
from amanda.driver.identity import frames
from amanda.drivers.tensorflow import port
from amanda.drivers.tensorflow.eager import backward as eager_backward
from amanda.drivers.tensorflow.eager import operands as eager_operands
from amanda.drivers.tensorflow.eager.backward import Forward, Gradient, Ran
from amanda.drivers.tensorflow.eager.operands import OperatorType
from amanda.drivers.tensorflow.eager.places import Places
from amanda.drivers.tensorflow.version import VERSION
from amanda.drivers.tensorflow.view import coverage, passing, tapes, variable_gradients
from amanda.drivers.tensorflow.view.places import Place

_MOST_TOOLSETS = 16

EAGER = _core.GraphBackend(
    f"tensorflow/{VERSION}/eager", backward="operators", can_replace=False, keeps_gradients=True, both_sides=True
)
EAGER.describe(eager_operands.describe)

_READ = (passing.READ, passing.READ.encode())

_NOTHING: dict[object, Any] = {}
_links = eager_backward.Links()


def refuse(point: str, position: int) -> str:
    return (
        "TensorFlow shows eager operators after they have run, so that tools can only look at them; edit it in a function: "
        "decorate the model, or the training step, with tf.function"
    )


class Shown(NamedTuple):
    """An operator under a toolset, with what tools scheduled."""

    site: _core.OpSite  # without operands, which would stay alive
    before: list[_core.Tap]
    after: list[_core.Tap]


class _OneOperator:
    """A graph of one operator: what tools analyze. See amanda::GraphSite."""

    def __init__(self, site: _core.OpSite) -> None:
        self._site = site

    def each_op(self, visitor: _core.GraphVisitor) -> None:
        visitor.op(self._site)

    def lower(self, sites: list[tuple[int, list[_core.Tap]]]) -> list[_core.Tap]:
        return [tap for _, taps in sites for tap in taps]


class Observer:
    """The observer of one thread. TensorFlow calls it after each operator there, while a scope is open."""

    def __init__(self) -> None:
        self._is_registered = False
        self._unwanted: set[str | bytes] = set()  # names of operators that nobody asks for, as TensorFlow gives them
        self._places = Places()
        self._shown: dict[_core.Toolset, dict[object, Shown]] = {}
        self._gradient: list[Ran] | None = None  # what the running gradient function has called

    def switched(self) -> None:
        """This thread's tools have changed."""
        self._unwanted = set()
        if EAGER.has_scopes() != self._is_registered:
            self._is_registered = not self._is_registered
            (port.add_op_callback if self._is_registered else port.remove_op_callback)(self)

    def __call__(
        self,
        name: str | bytes,
        inputs: Sequence[Any],
        attributes: Sequence[Any],
        outputs: Sequence[Any],
        op_name: str | None = None,
        graph: Any = None,
    ) -> None:
        if graph is not None:
            return
        if name not in self._unwanted:
            self._see(name, inputs, attributes, outputs)
        if passing.results_are_listened_to():
            passing.note_results(name, inputs, outputs, is_backward=self._gradient is not None)

    def _see(self, name: str | bytes, inputs: Sequence[Any], attributes: Sequence[Any], outputs: Sequence[Any]) -> None:
        type = eager_operands.type_named(EAGER, _text(name))
        if self._gradient is not None:
            if type is not None:
                self._gradient.append(Ran(type, inputs, attributes, outputs))
                if type.name == passing.SUM and passing.is_listened_to():
                    passing.note_sum(inputs, outputs)
            return
        if type is None and passing.reads_are_listened_to():
            if name in _READ or port.find_op_def(_text(name)) is None:  # else it holds a value, or connects
                passing.note_read(inputs, outputs)
            return
        if not coverage.is_open() and (type is None or not EAGER.wants(type.number)):
            self._unwanted.add(name)
        elif type is not None:
            coverage.shown(EAGER, type.name, type.number, is_backward=False)
            self._forward(type, inputs, attributes, outputs, sys._getframe(2))
            if type.name in passing.WRITES and passing.is_listened_to():
                passing.note_write(type.name, inputs)

    def _forward(
        self, type: OperatorType, inputs: Sequence[Any], attributes: Sequence[Any], outputs: Sequence[Any], frame: Any
    ) -> None:
        toolset = EAGER.toolset()
        if toolset is None or not EAGER.wants(type.number):
            return
        place = self._places.place_of(type.name, frame)
        shown = self._shown.get(toolset, _NOTHING).get(place.id)
        ins: list[Any] = []
        outs: list[Any] = []
        if shown is None or shown.before or shown.after:
            ins, outs = type.grouped_inputs(inputs, attributes), type.grouped_outputs(outputs, attributes)
        if shown is None:
            shown = self._show(toolset, place.id, type, place, place.id, ins, outs, None, attributes)
        state = None
        if not port.no_tape_records():
            state = _core.RunState()
            _links.add(attributes, Forward(type, place, state))
        if ins or outs:
            _run(shown, ins, outs, state or _core.RunState(), is_backward=False)

    def _show(
        self,
        toolset: _core.Toolset,
        key: object,
        type: OperatorType,
        place: Place,
        id: int,
        inputs: Sequence[Any],
        outputs: Sequence[Any],
        forward: tuple[_core.OpSite, _core.OpSite] | None,
        attributes: Sequence[Any],
    ) -> Shown:
        """`forward`: its site with operands, and without."""
        table = self._shown.get(toolset)
        if table is None:
            table = self._new_table(toolset)
        found = table.get(key)
        if found is None:
            make = functools.partial(_core.OpSite, EAGER, type.number, id, module_path=place.module_path)
            with_operands = make(
                tuple(map(eager_operands.symbol_of, inputs)),
                tuple(map(eager_operands.symbol_of, outputs)),
                source=place.source,
                refuse=refuse,
                forward=forward and forward[0],
                attribute=functools.partial(eager_operands.attribute, attributes),
            )
            artifact = _core.instrument(toolset, EAGER, _OneOperator(with_operands))
            taps: list[_core.Tap] = artifact.lowered or []
            found = table[key] = Shown(
                make(
                    (None,) * len(inputs),
                    (None,) * len(outputs),
                    source=place.source,
                    refuse=refuse,
                    forward=forward and forward[1],
                ),
                [tap for tap in taps if tap.point == "before"],
                [tap for tap in taps if tap.point == "after"],
            )
        return found

    def _new_table(self, toolset: _core.Toolset) -> dict[object, Shown]:
        if len(self._shown) >= _MOST_TOOLSETS:
            for known in [known for known in self._shown if known.is_over()] or list(self._shown):
                del self._shown[known]
        return self._shown.setdefault(toolset, {})

    @property
    def computes_gradients(self) -> bool:
        return self._gradient is not None

    @contextlib.contextmanager
    def in_gradient(self) -> Iterator[list[Ran]]:
        """A context in which gradients are computed: its operators are no forward operators."""
        outer, unwanted = self._gradient, self._unwanted
        ran: list[Ran] = []
        self._gradient, self._unwanted = ran, set()
        try:
            yield ran
        finally:
            self._gradient = outer
            self._unwanted = unwanted

    def show_backward(self, gradient: Gradient, ran: Sequence[Ran]) -> None:
        forward = gradient.forward
        toolset = EAGER.toolset()
        if toolset is None or not EAGER.wants(forward.type.number):
            return
        number: dict[str, int] = {}
        for each in ran:
            name = each.type.name
            index = number[name] = number.get(name, -1) + 1
            coverage.shown(EAGER, name, forward.type.number, is_backward=True)
            ins, outs = gradient.grad_outputs(each), gradient.grad_inputs(each)
            id = frames.hash_of((forward.place.id, name, index)) or 1
            shown = self._show(
                toolset,
                (id, len(ins), len(outs)),
                each.type,
                forward.place,
                id,
                ins,
                outs,
                _forward_sites(gradient),
                each.attributes,
            )
            _run(shown, ins, outs, _core.RunState(forward.state), is_backward=True)


def _text(name: str | bytes) -> str:
    return name.decode() if isinstance(name, bytes) else name


def _forward_sites(gradient: Gradient) -> tuple[_core.OpSite, _core.OpSite]:
    type, place = gradient.forward.type, gradient.forward.place
    ins, outs = gradient.forward_operands()
    make = functools.partial(_core.OpSite, EAGER, type.number, place.id)
    symbols = tuple(map(eager_operands.symbol_of, ins)), tuple(map(eager_operands.symbol_of, outs))
    attribute = functools.partial(eager_operands.attribute, gradient.attributes)
    return make(*symbols, attribute=attribute), make((None,) * len(ins), (None,) * len(outs))


def _run(shown: Shown, inputs: list[Any], outputs: list[Any], state: _core.RunState, is_backward: bool) -> None:
    for tap in shown.before:
        if (arrays := _arrays(tap, inputs, (), is_backward)) is not None:
            tap.run(shown.site, arrays[0], state=state)
    for tap in shown.after:
        if (arrays := _arrays(tap, outputs, inputs, is_backward)) is not None:
            tap.run(shown.site, arrays[1], arrays[0], state=state)


def _arrays(
    tap: _core.Tap, selected: Sequence[Any], shown: Sequence[Any], is_backward: bool
) -> tuple[list[Any], list[Any]] | None:
    if is_backward:
        return eager_backward.arrays_for(tap, selected, shown)
    return (
        eager_operands.arrays_of(selected, tap.selects),
        eager_operands.arrays_of(shown, tap.shows_input),
    )


class _Here(threading.local):
    def __init__(self) -> None:
        self.observer = Observer()
        self.asked: Sequence[Any] = ()  # the sources that the program gives a tape


_here = _Here()


def in_gradient() -> bool:
    """True while this thread computes gradients."""
    here: _Here | None = _here  # None when the interpreter ends
    return here is not None and here.observer.computes_gradients


def _switched() -> None:
    _here.observer.switched()


def patch() -> None:
    """Patches TensorFlow for the first scope of the process. Each thread with a scope has a callback of its own."""
    port.execute.replace(port.execute_with_callbacks)
    port.invokes_callbacks.replace(_invokes_callbacks)
    port.register_tape_gradient(_gradient)


def _invokes_callbacks() -> bool:
    """TensorFlow asks when it has added an operator to a graph. It describes the operator to callbacks, which takes time,
    and observers do not look at graphs."""
    return not _are_ours() and bool(port.invokes_callbacks.original())


def _are_ours() -> bool:
    return all(isinstance(callback, Observer) for callback in port.op_callbacks())


def unpatch() -> None:
    port.register_tape_gradient(tapes.gradient)
    port.invokes_callbacks.restore()
    if _are_ours():  # the program's own need it, too
        port.execute.restore()
    _links.clear()


def attach() -> None:
    """Called once, when the driver is loaded: scopes may be open. Gradients in functions are noted from then on, because
    a function may be traced once."""
    EAGER.on_switch(_switched)
    _switched()
    port.imperative_grad.replace(_imperative_grad)
    port.gradient_of_tape.replace(_gradient_of_tape)


@functools.wraps(port.imperative_grad.original)
def _imperative_grad(tape: Any, target: Any, sources: Any, *args: Any, **kwargs: Any) -> Any:
    is_watched = EAGER.has_scopes()
    if not is_watched and tf.executing_eagerly():
        return port.imperative_grad.original(tape, target, sources, *args, **kwargs)
    with _here.observer.in_gradient() if is_watched else contextlib.nullcontext():
        found = port.imperative_grad.original(tape, target, sources, *args, **kwargs)
    if is_watched or not tf.executing_eagerly():
        variable_gradients.note_of_tape(tape, target, sources, found, _here.asked)
    return found


@functools.wraps(port.gradient_of_tape.original)
def _gradient_of_tape(tape: Any, target: Any, sources: Any, *args: Any, **kwargs: Any) -> Any:
    outer, _here.asked = _here.asked, tf.nest.flatten(sources)
    try:
        return port.gradient_of_tape.original(tape, target, sources, *args, **kwargs)
    finally:
        _here.asked = outer


def _gradient(
    op_name: str, attributes: Any, count: int, inputs: Any, outputs: Any, incoming: Any, skipped: Any, scope: Any
) -> Any:
    """Replaces the function that tapes call for each operator."""
    observer = _here.observer
    with observer.in_gradient() as ran:
        returned = tapes.gradient(op_name, attributes, count, inputs, outputs, incoming, skipped, scope)
    forward = _links.find(attributes) if ran else None
    if forward is not None:
        observer.show_backward(Gradient(forward, attributes, inputs, outputs, incoming, returned), ran)
    elif ran:
        for each in ran:
            coverage.skipped(each.type.name, "unowned", is_backward=True)
    return returned
