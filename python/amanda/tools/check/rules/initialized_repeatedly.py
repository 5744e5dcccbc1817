"""initialized-repeatedly."""

from __future__ import annotations

import weakref
from typing import Any

from amanda import OpContext
from amanda.toolkit import Place
from amanda.toolkit.evidence import counted

from ..rule import Rule

LEAST = 3


class InitializedRepeatedly(Rule):
    """A parameter is filled with random numbers three times or more, as where each module of a model initializes all
    modules in it. Large models then take minutes to be made, and random numbers depend on how modules are nested."""

    name = "initialized-repeatedly"
    sentence = "a parameter is initialized again and again"
    fix = "initialize in the outermost module alone: self.apply(init) once"
    is_advice = True
    ops = ("normal_", "uniform_")
    bad = """
        def init(module):
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight)
        for part in (model[0], model):
            part.apply(init)
        model.apply(init)
    """
    good = """
        def init(module):
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight)
        model.apply(init)
    """

    def begin(self) -> None:
        self._counts: dict[int, tuple[weakref.ref[Any], int]] = {}  # by the parameter's id
        self._lines: dict[str, tuple[Place, set[int]]] = {}  # where it was for the third time: the parameters

    def look(self, context: OpContext) -> None:
        context.insert_before_op(self._on_write, inputs=[0], place=Place.of(context))

    def _on_write(self, written: Any, place: Place) -> None:
        if not written.requires_grad or not written.is_leaf:
            return
        reference, count = self._counts.get(id(written), (None, 0))
        count = count + 1 if reference is not None and reference() is written else 1
        self._counts[id(written)] = weakref.ref(written), count
        if count >= LEAST:
            self._lines.setdefault(place.source, (place, set()))[1].add(id(written))

    def at_end(self, ended_well: bool) -> None:
        for place, parameters in self._lines.values():
            self.found(place, f"{counted(len(parameters), 'parameter')}, at least {LEAST} times", count=len(parameters))
        self._lines.clear()
