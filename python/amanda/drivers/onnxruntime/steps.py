"""The steps of a chain that run operators: some nodes of the graph, or one node that a routine replaces."""

from __future__ import annotations

import threading
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from typing import Any, Protocol

import numpy as np

from amanda.drivers.onnxruntime import kinds, port, protos
from amanda.drivers.onnxruntime.operands import Operands, locked
from amanda.drivers.onnxruntime.program import Program, Unreadable
from amanda.drivers.onnxruntime.taps import Edited, Run


class Step(Protocol):
    """Runs operators, and puts their results into the values of a run."""

    @property
    def reads(self) -> list[str]: ...
    def shows(self, names: AbstractSet[str], results: AbstractSet[str]) -> None: ...
    def __call__(self, run: Run) -> None: ...


class Results:
    """The values that a step makes.

    Raises:
        Unreadable: one of them can't leave the graph.
    """

    def __init__(self, edited: Edited, names: list[str]) -> None:
        require_to_leave(edited, names)
        self.names = names
        self._only = names[0] if len(names) == 1 else None
        self._locked: list[int] = []
        self._both: list[tuple[int, str]] = []

    def shows(self, names: AbstractSet[str], results: AbstractSet[str]) -> None:
        """Routines get these values, and can't write to them. `results`: those that the program gets."""
        shown = [(i, name) for i, name in enumerate(self.names) if name in names]
        self._locked = [i for i, name in shown if name not in results]
        self._both = [(i, name) for i, name in shown if name in results]

    def put(self, run: Run, found: list[Any]) -> None:
        for i in self._locked:
            value = found[i]
            if isinstance(value, np.ndarray):
                value.setflags(write=False)  # it is new: it needs no view
        for i, name in self._both:
            run.results[name] = found[i]
            found[i] = locked(found[i])
        if self._only is None:
            run.values.update(zip(self.names, found, strict=True))
        else:
            run.values[self._only] = found[0]


class Part:
    """Runs some of the nodes, in a session that is made when it is needed first.

    If a constant of it was edited, the edited value is a constant, too, and the session is made again when it changes.
    """

    def __init__(
        self,
        program: Program,
        edited: Edited,
        nodes: list[Any],
        makes: list[str],
        *,
        is_alone: bool,
    ) -> None:
        self._program, self._nodes, self._makes, self._is_alone = program, nodes, makes, is_alone
        made = {name for node in nodes for name in node.output}
        outside = dict.fromkeys(name for node in nodes for name in protos.reads(node) if name not in made)
        self._baked = [name for name in outside if edited.is_constant(name)]
        others = [name for name in outside if name not in self._baked and not program.is_constant(name)]
        self._takes = {name: edited.kind_of(name) for name in others}
        require_to_leave(edited, others)
        self._results = Results(edited, makes)
        self.shows = self._results.shows
        self._in_force: dict[str, Any] = {}
        self._run: Callable[[list[str], dict[str, Any], Any], list[Any]] | None = None
        self._lock = threading.Lock()
        if not self._baked:
            self._up_to_date({})

    @property
    def reads(self) -> list[str]:
        return [*self._takes, *self._baked]

    def __call__(self, run: Run) -> None:
        values = run.values
        call = self._run
        if call is None or self._baked:
            call = self._up_to_date(values)
        self._results.put(run, call(self._makes, {name: values[name] for name in self._takes}, run.options))

    def _up_to_date(self, values: dict[str, Any]) -> Callable[[list[str], dict[str, Any], Any], list[Any]]:
        with self._lock:
            old = self._in_force
            if self._run is None or any(not _equal(values[name], old[name]) for name in self._baked):
                new = {name: values[name] for name in self._baked}
                self._run = port.runs(
                    self._program.part(self._nodes, self._takes, self._makes, new, is_alone=self._is_alone)
                )
                self._in_force = new
            return self._run


class Replaced:
    """Runs an operator that a routine replaces, on the inputs that the routine gives it.

    Arguments:
        step: makes the step of the node.
    """

    def __init__(
        self,
        program: Program,
        edited: Edited,
        node: Any,
        inputs: Operands,
        outputs: Operands,
        step: Callable[[Any, Edited], Step],
    ) -> None:
        self._inputs, self._outputs = inputs, outputs
        self._results = list(outputs.names)
        alone = type(node)()
        alone.CopyFrom(node)
        self._names = [f"{name}@{i}" if name else "" for i, name in enumerate(inputs.names)]  # it may read one twice
        alone.input[:] = self._names[: len(node.input)]
        sources = dict(zip(self._names, inputs.names, strict=True))
        self._step = step(alone, _Given(edited, program, sources))
        self.captured = [name for name in self._step.reads if name not in sources]

    def __call__(self, run: Run, *inputs: Any) -> Any:
        """Its result; a tuple if it has several."""
        inner = Run({**run.values, **dict(zip(self._names, self._inputs.flat(inputs), strict=True))}, run.options)
        self._step(inner)
        results = self._outputs.arranged([inner.values[name] if name else None for name in self._results])
        return results[0] if len(results) == 1 else tuple(results)


class _Given:
    """The values that a routine gives to an operator, each in place of one that it got."""

    def __init__(self, edited: Edited, program: Program, sources: dict[str, str]) -> None:
        self._edited, self._program, self._sources = edited, program, sources

    def kind_of(self, name: str) -> str:
        return self._edited.kind_of(self._sources.get(name, name))

    def is_constant(self, name: str) -> bool:
        source = self._sources.get(name)
        if source is None:
            return self._edited.is_constant(name)
        return self._program.is_constant(source) or self._edited.is_constant(source)


def require_to_leave(edited: Edited, names: list[str]) -> None:
    """Raises `Unreadable`: a session does not give such a value to Python."""
    for name in names:
        if not kinds.can_leave(edited.kind_of(name)):
            raise Unreadable(f"{name!r}, a {edited.kind_of(name)}, can't leave the graph")


def _equal(one: Any, other: Any) -> bool:
    return one is other or (one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes())
