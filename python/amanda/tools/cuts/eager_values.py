"""EagerValues: which operators computed what TensorFlow's eager code differentiates."""

from __future__ import annotations

import collections
import dataclasses
import functools
import weakref
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from amanda import OpContext
from amanda.toolkit import Place

from .cut import Cut
from .reasons import REASONS

if TYPE_CHECKING:
    from .zeros import Zeros

_BY_NUMPY = ", as far as operators show: numpy() ends a path, too"
MOST_BEHIND = 20_000  # operators that are followed from a loss


@dataclasses.dataclass(eq=False)
class Step:
    """An operator's first run."""

    place: Place | None  # None of a call of a function
    reason: str  # why no gradient passes it, a key of REASONS; "" if one does
    before: tuple[Step, ...]  # those that made its inputs
    variables: frozenset[object]  # that it reads, as drivers call them
    positions: tuple[int, ...] = ()  # of `before`, among its operands


class EagerValues:
    """Remembers, as long as results are alive, which operators made them. An operator is shown in its first run: where
    others ran again, or read a variable themselves, what is not connected is not known to be so."""

    def __init__(self) -> None:
        self._of: dict[int, tuple[weakref.ref[Any], Step]] = {}
        self._used: dict[object, Place] = {}  # by variable: the operator that used it last
        # Addresses of inputs that nothing seen here made: data, or TensorFlow's own reads.
        self._unknown: set[int] = set()
        self._steps = self._runs = 0
        self._is_hidden = False

    def read(self, keys: Sequence[object], inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """A variable is read, or a function is called."""
        before = tuple(found for one in inputs if (found := _known(self._of, one)) is not None)
        self._note(Step(None, "", before, frozenset(keys)), outputs)

    def see(self, context: OpContext) -> None:
        """An analysis routine, after the operator's first run."""
        from amanda.toolkit.tensorflow import address_of, is_recorded, why_closed

        outputs, inputs = [*members(context.outputs)], [*members(context.inputs)]
        if not any(one is not None for one in outputs):
            return
        self._is_hidden |= any(one is None for one in inputs)
        inputs = [one for one in inputs if one is not None]
        first = next(one for one in outputs if one is not None)
        place = Place.of(context)
        positions = [(i, one) for i, operand in enumerate(context.inputs) for one in members([operand])]
        known = [(i, found) for i, one in positions if (found := one is not None and _known(self._of, one))]
        before = tuple(found for _, found in known)
        unknown = [one for one in inputs if _known(self._of, one) is None]
        self._unknown.update(address for one in unknown if (address := address_of(one)) is not None)
        variables = frozenset(
            key for step in before if step.place is None and not step.before for key in step.variables
        )
        self._used.update(dict.fromkeys(variables, place))
        self._steps += 1
        reason = why_closed(context.op.__name__, first.dtype) or ("" if is_recorded() else "tape")
        self._note(Step(place, reason, before, frozenset(), tuple(i for i, _ in known)), outputs)

    def _note(self, step: Step, outputs: Sequence[Any]) -> None:
        for one in outputs:
            if one is not None:
                self._of[id(one)] = weakref.ref(one, functools.partial(self._forget, id(one))), step

    def count(self) -> None:
        """A run of an operator that was seen."""
        self._runs += 1

    def cuts_of(self, targets: Sequence[Any], key: object, variable: Any, *, is_watched: bool) -> list[Cut]:
        """The ends of the paths of a variable, that drivers call `key`; empty if they are not known. `is_watched`: a tape
        watches the variable. If not, an operator is an end only if no tape has recorded it."""
        from amanda.toolkit.tensorflow import address_of

        ends = [step for one in targets if (step := _known(self._of, one)) is not None]
        if not ends:
            return []
        behind = {id(step): step for step in _behind(ends)}
        leading = [step for step in behind.values() if key in step.variables]
        if leading:
            return [one for one in _ends(leading, behind) if is_watched or one.reason == "tape"]
        used = self._used.get(key)
        if used is None or variable is None or self._runs > self._steps or self._is_hidden:
            return []
        if address_of(variable) in self._unknown:
            return []
        return [Cut("outside the loss", f"{REASONS['outside the loss']}{_BY_NUMPY}", None, used)]

    def place_of(self, tensor: Any) -> Place | None:
        """The operator whose result a tensor is, if it was seen."""
        step = _known(self._of, tensor)
        return None if step is None else step.place

    def zero_cuts_of(self, targets: Sequence[Any], key: object, zeros: Zeros) -> list[Cut]:
        """The operators at which the gradient of a variable became zero, as far as they are known."""
        ends = [step for one in targets if (step := _known(self._of, one)) is not None]
        behind = {id(step): step for step in _behind(ends)}
        users: dict[int, list[tuple[Step, int]]] = collections.defaultdict(list)
        for step in behind.values():
            for one, position in zip(step.before, step.positions or (0,) * len(step.before), strict=True):
                users[id(one)].append((step, position))
        leading = [step for step in behind.values() if key in step.variables]
        return zeros.eager_cuts_of(leading, lambda step: users[id(step)])

    def _forget(self, key: int, _: object) -> None:
        self._of.pop(key, None)


def _known(table: dict[int, tuple[weakref.ref[Any], Step]], tensor: Any) -> Step | None:
    reference, found = table.get(id(tensor), (None, None))
    return found if reference is not None and reference() is tensor else None


def _ends(leading: Sequence[Step], behind: dict[int, Step]) -> Iterator[Cut]:
    """From the variable on: the first operators that pass no gradient on. Those that a tape has not recorded come last,
    because the program may compute such a gradient itself."""
    users: dict[int, list[Step]] = collections.defaultdict(list)
    for step in behind.values():
        for one in step.before:
            users[id(one)].append(step)
    for kinds in (False, True):
        waiting: collections.deque[tuple[Step, Place | None]] = collections.deque((step, None) for step in leading)
        seen: set[int] = set()
        found = False
        while waiting:
            step, last = waiting.popleft()
            if id(step) in seen:
                continue
            seen.add(id(step))
            if step.place is not None and step.reason and (step.reason == "tape") == kinds:
                found = True
                yield Cut(step.reason, REASONS[step.reason], last, step.place)
            else:
                waiting.extend((user, step.place or last) for user in users[id(step)])
        if found:
            return


def _behind(ends: Sequence[Step]) -> Iterator[Step]:
    waiting, seen = list(ends), {id(step) for step in ends}
    while waiting and len(seen) < MOST_BEHIND:
        step = waiting.pop()
        yield step
        for one in step.before:
            if id(one) not in seen:
                seen.add(id(one))
                waiting.append(one)


def members(operands: Sequence[Any]) -> Iterator[Any]:
    """The operands, and those in lists instead of these."""
    for operand in operands:
        yield from operand if isinstance(operand, list | tuple) else [operand]
