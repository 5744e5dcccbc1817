"""Variables of TensorFlow: which of them get no gradient of those that a program asks for, and why."""

from __future__ import annotations

import dataclasses
import itertools
import math
import sys
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from amanda import OpContext
from amanda.toolkit import Place
from amanda.toolkit.frameworks import shows_after_run

from .cut import Cut, Finding, Verdict
from .eager_values import EagerValues
from .reasons import REASONS
from .rows import Row
from .zeros import Zeros

if TYPE_CHECKING:
    from amanda.toolkit.tensorflow import Differentiated, End, Sought

Shape = tuple[int | None, ...] | None  # None if the rank is not known

_NOWHERE = Place(None, "", "", "")


@dataclasses.dataclass(eq=False)
class Variable:
    """A variable of which the program asked for gradients."""

    name: str
    shape: Shape
    passes: int = 0  # in which it was asked for
    gradients: int = 0
    is_zero: bool | None = None  # all that were read; None if none was
    cuts: tuple[Cut, ...] = ()

    @property
    def verdict(self) -> Verdict:
        if not self.gradients:
            return "none"
        if self.is_zero:
            return "zero"
        return "ok" if self.gradients == self.passes else "partial"

    @property
    def is_finding(self) -> bool:
        return self.verdict in ("none", "zero") and not any(cut.is_meant for cut in self.cuts)


class Variables:
    """Those that `tape.gradient` and `tf.gradients` were asked for. In a graph, such a call counts once."""

    def __init__(self) -> None:
        self.passes = 0
        self._known: dict[object, Variable] = {}
        self._seen: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()  # calls, by graph
        self._values = EagerValues()
        self._zeros = Zeros()
        self._zero_cuts: dict[object, list[Cut]] = {}  # by variable
        self._in_graph: dict[object, tuple[weakref.ref[Any], list[str]]] = {}  # by variable: what is differentiated
        self._stop: list[Callable[[], None]] = []

    # ---- the scope --------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Asks for the gradients of eager code, if TensorFlow's driver is loaded."""
        if not self._stop and "amanda.drivers.tensorflow.port" in sys.modules:
            from amanda.toolkit.tensorflow import listen_to_differentiated, listen_to_reads, listen_to_roles

            self._stop = [listen_to_differentiated(self._judge), listen_to_reads(self._values.read)]
            self._stop.append(listen_to_roles(self._zeros.read))

    def end(self) -> None:
        self._judged()  # while the graphs are there
        while self._stop:
            self._stop.pop()()

    def reset(self) -> None:
        self.passes = 0
        self._known.clear()
        self._zero_cuts.clear()
        self._zeros.reset()

    # ---- operators --------------------------------------------------------------------------------------------------

    def analyze(self, context: OpContext) -> None:
        """An analysis routine of forward and backward operators. A gradient in a graph counts when its graph has run a
        backward operator."""
        self.begin()
        if context.is_backward():
            self._zeros.analyze_backward(context)
        if context.is_backward() and not shows_after_run(context):
            for symbol in (*context.grad_outputs, *context.grad_inputs):
                self._look_at_graph(symbol)

    def see(self, context: OpContext) -> None:
        """The same, of a forward operator, with its results."""
        self._zeros.see(context)
        if shows_after_run(context):
            self._values.see(context)
            context.insert_after_op(self._count, inputs=[])

    def _count(self, *_: Any) -> None:
        self._values.count()

    def _look_at_graph(self, symbol: Any) -> None:
        from amanda.toolkit.tensorflow import differentiated_in

        found = differentiated_in(symbol)
        if found:
            known = self._seen.get(symbol.graph, 0)
            self._seen[symbol.graph] = len(found)
            for one in found[known:]:
                self._judge(one)

    # ---- gradients --------------------------------------------------------------------------------------------------

    def _judge(self, call: Differentiated) -> None:
        from amanda.toolkit.tensorflow import differentiated_in

        self.passes += 1
        for tensor in call.tensors:
            self._note_tensor(tensor)
        for sought in call.variables:
            variable = self._of(sought)
            variable.passes += 1
            variable.gradients += sought.has_gradient
            if not sought.has_gradient and not variable.cuts:
                variable.cuts = tuple(self._cuts(call, sought))
            key = sought.value.key
            if not sought.has_gradient:
                continue
            if not differentiated_in(call.targets[0]):
                if self._zeros.is_zero(key) and not self._zero_cuts.get(key):
                    self._zero_cuts[key] = self._values.zero_cuts_of(call.targets, key, self._zeros)
            else:
                graph = weakref.ref(call.targets[0].graph)
                self._in_graph[key] = graph, [target.name for target in call.targets]

    def _note_tensor(self, tensor: Any) -> None:
        """A tensor that is no variable got no gradient."""
        from amanda.toolkit.tensorflow import EagerTensor, maker_of

        made = None if isinstance(tensor, EagerTensor) else maker_of(tensor)
        place = _place(*made) if made is not None else self._values.place_of(tensor)
        shape = _dimensions(tensor.shape)
        known = self._known.get((shape, place))
        if known is None and place is None:  # a later run of an operator is not seen
            known = next((one for key, one in self._known.items() if isinstance(key, tuple) and key[0] == shape), None)
        if known is None:
            cut = Cut("no variable", REASONS["no variable"], None, place)
            name = "a tensor of unknown shape" if shape is None else f"a tensor of shape {shape}"
            known = self._known[shape, place] = Variable(name, shape, cuts=(cut,))
        known.passes += 1

    def _of(self, sought: Sought) -> Variable:
        known = self._known.get(sought.value.key)
        if known is None:
            taken = {one.name for one in self._known.values()}
            numbered = (f"{sought.value.name} #{number}" for number in itertools.count(2))
            name = next(one for one in itertools.chain([sought.value.name], numbered) if one not in taken)
            known = self._known[sought.value.key] = Variable(name, _shape(sought))
        return known

    def _cuts(self, call: Differentiated, sought: Sought) -> list[Cut]:
        from amanda.toolkit.tensorflow import differentiated_in, paths_of

        if call.has_tape and not sought.is_trainable and not sought.is_watched:
            return [_plain("not trainable")]
        if not differentiated_in(call.targets[0]):
            cuts = self._values.cuts_of(call.targets, sought.value.key, _alive(sought), is_watched=sought.is_watched)
        else:
            paths = paths_of(call.targets, sought.value.key, has_tape=call.has_tape, is_watched=sought.is_watched)
            cuts = [_cut(one) for one in paths.ends]
            if not paths.leads:
                last = paths.last
                cuts = [_plain("outside the loss", _place(*last))] if paths.is_used and last else [_plain("unused")]
        if cuts:
            return cuts
        return [_plain("not seen in TensorFlow" if sought.is_watched else "not watched")]

    # ---- results ----------------------------------------------------------------------------------------------------

    def _judged(self) -> list[Variable]:
        """All variables; those whose gradients were zero with the operators that made them so."""
        found = []
        for key, one in self._known.items():
            one = dataclasses.replace(one, is_zero=self._zeros.is_zero(key))
            if one.verdict == "zero":
                cuts = self._zero_cuts.get(key) or self._cuts_in_graph(key)
                one = dataclasses.replace(one, cuts=tuple(cuts or [_plain("where is not seen")]))
            found.append(one)
        return found

    def _cuts_in_graph(self, key: object) -> list[Cut]:
        reference, names = self._in_graph.get(key, (lambda: None, []))
        graph = reference()
        if graph is None:
            return []
        targets = [graph.get_tensor_by_name(name) for name in names]
        cuts = self._zero_cuts[key] = self._zeros.cuts_of(targets, key)
        return cuts

    def unread(self) -> int:
        """The number of variables that got gradients, of which none was read."""
        return sum(one.is_zero is None and one.gradients > 0 for one in self._judged())

    def findings(self) -> list[Finding]:
        groups: dict[tuple[Verdict, tuple[Cut, ...]], list[Variable]] = {}
        for one in self._judged():
            if one.is_finding:
                groups.setdefault((one.verdict, one.cuts), []).append(one)
        return [
            Finding(
                verdict,
                tuple(one.name for one in group),
                cuts,
                max(one.passes for one in group),
                any(len(one.shape or ()) > 1 for one in group),
            )
            for (verdict, cuts), group in groups.items()
        ]

    def rows(self) -> list[Row]:
        rows = [_row(one) for one in self._judged()]
        return sorted(rows, key=lambda row: (not row.is_finding, row.verdict == "ok"))


def _plain(reason: str, end: Place | None = None) -> Cut:
    return Cut(reason, REASONS[reason], None, end)


def _cut(end: End) -> Cut:
    return Cut(end.reason, REASONS[end.reason], end.last and _place(*end.last), _place(end.operator, end.place))


def _place(operator: str, place: Any) -> Place:
    return Place(place.id, f"tensorflow::{operator}", place.module_path, place.source)


def _alive(sought: Sought) -> Any:
    return sought.value.variable() if sought.value.variable is not None else None


def _shape(sought: Sought) -> Shape:
    return _dimensions(getattr(_alive(sought), "shape", ()))


def _dimensions(shape: Any) -> Shape:
    return None if getattr(shape, "rank", 0) is None else tuple(shape)


def _row(one: Variable) -> Row:
    cuts = one.cuts if one.verdict in ("none", "zero") else ()
    last = cuts[0].last or _NOWHERE if cuts else _NOWHERE
    end = cuts[0].end or _NOWHERE if cuts else _NOWHERE
    return Row(
        one.name,
        one.verdict,
        one.is_finding,
        cuts[0].reason if cuts else "",
        "; ".join(map(str, cuts)),
        *last[1:],
        *end[1:],
        passes=one.passes,
        gradients=0 if one.verdict == "zero" else one.gradients,
        zeros=one.gradients if one.verdict == "zero" else 0,
        idle=0,
        elements=0 if one.shape is None else math.prod(size or 0 for size in one.shape),
    )
