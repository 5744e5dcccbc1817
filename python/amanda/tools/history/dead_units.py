"""DeadUnits: which units of ReLUs have been zero for all samples of many steps."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

from amanda import OpContext, Tool
from amanda.toolkit import Arrays, Place, Skips, TellsSkips, frameworks, locks
from amanda.toolkit.arrays import known as arrays_of
from amanda.toolkit.operators import vocabulary_of

RELUS = {"relu", "relu_", "relu6", "relu6_", "threshold", "threshold_"}  # names, and words


class Dead(NamedTuple):
    """Units that have just been zero for so many steps."""

    place: Place
    began: int  # the first of these steps
    dimension: int
    units: tuple[int, ...]
    of: int  # the size of that dimension


class DeadUnits(TellsSkips, Tool):
    """Finds units of ReLUs that are zero for all samples of `steps` active steps in a row; for `History`.

    A unit is a channel: an index of dimension 1 of a result with two, four or five dimensions. If there are three, both
    dimension 1 and the last one count, because the operator does not show which of them are channels. In TensorFlow it is
    an index of the last dimension. A dimension whose size changes has no units.
    """

    def __init__(self, steps: int) -> None:
        super().__init__("dead_units")
        self._limit = steps
        self._sites: dict[int, _Site] = {}
        self._skips = Skips("dead_units")
        self._lock = locks.lock()  # guards the fields above
        self.add_inst_for_op(self._analyze)  # all: a model without any is nothing to warn of

    def end_step(self, step: int) -> list[Dead]:
        """The units that became dead with this step."""
        with self._lock:
            return [dead for site in self._sites.values() for dead in site.end_step(step, self._limit)]

    def drop_step(self) -> None:
        """Forgets what has run since the last `end_step`."""
        with self._lock:
            for site in self._sites.values():
                site.alive.clear()

    def reset(self) -> None:
        """Forgets all steps."""
        self.reset_evidence()
        with self._lock:
            self._sites.clear()
        self._skips.reset()

    def _analyze(self, context: OpContext) -> None:
        vocabulary = vocabulary_of(context.namespace)
        words = () if vocabulary is None else vocabulary.words_for(context.op.name)
        if not RELUS.isdisjoint((context.op.__name__, *words)):
            is_last = frameworks.is_tensorflow(context)
            context.insert_after_op(self._look, outputs=[0], place=Place.of(context), is_last=is_last)

    def _look(self, output: Any, place: Place, is_last: bool) -> None:
        def look(array: Any, arrays: Arrays) -> list[tuple[int, Any]]:
            return [(d, _alive(array, d)) for d in _dimensions(array, is_last)]

        found = self._skips.read(output, look)
        with self._lock:
            site = self._sites.setdefault(place.op_id or 0, _Site(place))
            for dimension, alive in found or ():
                site.add(dimension, alive)


def _dimensions(array: Any, is_last: bool) -> tuple[int, ...]:
    """`is_last`: channels are the last dimension."""
    return {0: (), 1: (0,), 3: (2,) if is_last else (1, 2)}.get(array.ndim, (array.ndim - 1 if is_last else 1,))


def _alive(array: Any, dimension: int) -> Any:
    others = [other for other in range(array.ndim) if other != dimension]
    alive = array != 0
    return alive.any(tuple(others)) if others else alive


@dataclasses.dataclass(eq=False)
class _Site:
    """A ReLU of the program."""

    place: Place
    alive: dict[int, Any] = dataclasses.field(default_factory=dict)  # in this step, by dimension
    dead_for: dict[int, list[int]] = dataclasses.field(default_factory=dict)  # steps, of each unit
    steps: list[int] = dataclasses.field(default_factory=list)  # the last ones in which it ran
    varying: set[int] = dataclasses.field(default_factory=set)  # dimensions

    def add(self, dimension: int, alive: Any) -> None:
        if dimension in self.varying:
            return
        known = self.alive.get(dimension)
        old = known if known is not None else self.dead_for.get(dimension)
        if old is not None and len(old) != len(alive):
            self.varying.add(dimension)
            self.alive.pop(dimension, None)
            self.dead_for.pop(dimension, None)
            return
        self.alive[dimension] = alive if known is None else known | arrays_of(alive).matching(alive, known)

    def end_step(self, step: int, limit: int) -> list[Dead]:
        if not self.alive:
            return []
        self.steps = [*self.steps, step][-limit:]
        found = []
        for dimension, alive in self.alive.items():
            before = self.dead_for.get(dimension, [0] * len(alive))
            steps = [0 if lives else count + 1 for lives, count in zip(alive.tolist(), before, strict=True)]
            self.dead_for[dimension] = steps
            units = tuple(unit for unit, count in enumerate(steps) if count == limit)
            if units:
                found.append(Dead(self.place, self.steps[0], dimension, units, len(steps)))
        self.alive.clear()
        return found
