"""The steps of a chain: routines of a tap, some nodes of the graph, or one node that a routine replaces."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Protocol

import numpy as np

from amanda import _core
from amanda.drivers.onnxruntime import kinds, port, protos
from amanda.drivers.onnxruntime.program import Program, Unreadable


class Edited(Protocol):
    """The types of values that routines made."""

    def kind_of(self, name: str) -> str: ...
    def is_constant(self, name: str) -> bool: ...


class Run:
    """One run of a chain."""

    def __init__(self, values: dict[str, Any], options: Any) -> None:
        self.values, self.options = values, options
        self.states: dict[int, _core.RunState] = {}  # by the operator's id
        self.results: dict[str, Any] = {}  # of the program's, where `values` has what routines get


class Operands:
    """One side of a node: its names one after another, and their positions."""

    def __init__(self, given: Sequence[str], arranged: tuple[Any, ...]) -> None:
        self._counts = [len(each) if isinstance(each, tuple) else None for each in arranged]
        self.positions = [i for i, count in enumerate(self._counts) for _ in range(1 if count is None else count)]
        self.names = [*given, *[""] * (len(self.positions) - len(given))]
        self._is_plain = all(count is None for count in self._counts)

    def chosen(self, chooses: Callable[[int], bool]) -> dict[int, str]:
        """The names at the chosen positions, by index."""
        found = zip(self.names, self.positions, strict=True)
        return {i: name for i, (name, position) in enumerate(found) if name and chooses(position)}

    def arranged(self, values: Sequence[Any]) -> Sequence[Any]:
        """The values by position; those of a variadic position in a list."""
        if self._is_plain:
            return values
        rest = iter(values)
        return [next(rest) if count is None else [next(rest) for _ in range(count)] for count in self._counts]

    def flat(self, arranged: Sequence[Any]) -> list[Any]:
        """One after another, of values by position. A list at a position for one value is a sequence."""
        if self._is_plain:
            return list(arranged)
        found: list[Any] = []
        for count, value in zip(self._counts, arranged, strict=False):
            found += [value] if count is None else value
        return found


class Shown:
    """The values of one side of an operator that a routine gets, by position; None for others."""

    def __init__(self, operands: Operands, names: dict[int, str]) -> None:
        self._operands, self._names = operands, names
        self._nothing: list[Any] = [None] * len(operands.names)
        self._without = tuple(operands.arranged(self._nothing))

    def of(self, values: dict[str, Any]) -> Sequence[Any]:
        if not self._names:
            return self._without
        found = self._nothing.copy()
        for i, name in self._names.items():
            found[i] = values.get(name)
        return self._operands.arranged(found)


class TapStep:
    """Runs the routines of a tap.

    Arguments:
        share: makes what routines of one execution share; None if they share nothing.
        outputs: None before the operator.
        original: for a tap in place of the operator.
    """

    def __init__(
        self,
        edited: Edited,
        site: _core.OpSite,
        tap: _core.Tap,
        share: Callable[[], _core.RunState] | None,
        inputs: Operands,
        outputs: Operands | None = None,
        original: Original | None = None,
    ) -> None:
        self._site, self._run, self._share, self._original = site, tap.run, share, original
        self._own = own = inputs if outputs is None else outputs
        is_after = outputs is not None and original is None
        takes = inputs.chosen(_every if original is not None else tap.shows_input if is_after else tap.selects)
        gets = own.chosen(tap.selects) if is_after else {}
        self._inputs, self._outputs = Shown(inputs, takes), Shown(own, gets) if is_after else None
        edits = _every if original is not None else _none if tap.kind == "observe" else tap.selects
        before = own.chosen(edits)
        #: By the index of an operand, the name of its new value.
        self.writes = {i: f"{name}@{tap.id}.{i}" for i, name in before.items()}  # a node may read a value twice
        self._dtypes = {i: kinds.dtype_of(edited.kind_of(name)) for i, name in before.items()}
        captured = original.captured if original is not None else []
        self.shows = {*takes.values(), *gets.values()}
        self.reads = list(dict.fromkeys([*takes.values(), *gets.values(), *captured]))

    def __call__(self, run: Run) -> None:
        values = run.values
        inputs = self._inputs.of(values)
        outputs = self._outputs.of(values) if self._outputs is not None else ()
        if not self.writes:
            self._run(self._site, inputs, outputs, state=self._state(run))
            return
        original = functools.partial(self._original, run) if self._original is not None else None
        results = self._run(self._site, inputs, outputs, original=original, state=self._state(run), check=self._check)
        flat = self._own.flat(results)
        for index, name in self.writes.items():
            is_array = self._dtypes[index] is not None  # ascontiguousarray() would make a number an array of one
            values[name] = np.asarray(flat[index], order="C") if is_array else flat[index]

    def _state(self, run: Run) -> _core.RunState | None:
        if self._share is None:
            return None
        key = id(self._site)
        if key not in run.states:
            run.states[key] = self._share()
        return run.states[key]

    def _check(self, position: int, given: Any) -> str | None:
        """Why ONNX Runtime does not take what a routine gives; None if it does."""
        indices = [i for i, one in enumerate(self._own.positions) if one == position]
        values = given if isinstance(given, list | tuple) else [given]
        if len(values) != len(indices):
            return f"{len(values)} values where {len(indices)} are needed"
        for i, value in zip(indices, values, strict=True):
            dtype = self._dtypes.get(i)
            if dtype is not None and not isinstance(value, np.ndarray | np.generic):
                return f"{type(value).__name__} where an array of {dtype} is needed"
            if dtype is not None and value.dtype != dtype:
                return f"an array of {value.dtype} where one of {dtype} is needed; .astype({str(dtype)!r}) converts it"
        return None


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
        for name in (*others, *makes):
            if not kinds.can_leave(edited.kind_of(name)):
                raise Unreadable(f"{name!r}, a {edited.kind_of(name)}, can't leave the graph")
        self._in_force: dict[str, Any] = {}
        self._run: Callable[[list[str], dict[str, Any], Any], list[Any]] | None = None
        self._shown: list[tuple[int, str, bool]] = []
        self._lock = threading.Lock()
        if not self._baked:
            self._up_to_date({})

    @property
    def reads(self) -> list[str]:
        return [*self._takes, *self._baked]

    def shows(self, names: AbstractSet[str], results: AbstractSet[str]) -> None:
        """Routines get these values, and can't write to them. `results`: those that the program gets."""
        self._shown = [(i, name, name in results) for i, name in enumerate(self._makes) if name in names]

    def __call__(self, run: Run) -> None:
        values = run.values
        call = self._run
        if call is None or self._baked:
            call = self._up_to_date(values)
        results = call(self._makes, {name: values[name] for name in self._takes}, run.options)
        for i, name, is_result in self._shown:
            if is_result:
                run.results[name] = results[i]
            results[i] = locked(results[i])
        values.update(zip(self._makes, results, strict=True))

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


class Original:
    """Runs an operator that a routine replaces, on the inputs that the routine gives it."""

    def __init__(self, program: Program, edited: Edited, node: Any, inputs: Operands, outputs: Operands) -> None:
        self._inputs, self._outputs = inputs, outputs
        self._results = list(outputs.names)
        alone = type(node)()
        alone.CopyFrom(node)
        self._names = [f"{name}@{i}" if name else "" for i, name in enumerate(inputs.names)]  # it may read one twice
        alone.input[:] = self._names[: len(node.input)]
        sources = dict(zip(self._names, inputs.names, strict=True))
        made = [name for name in node.output if name]
        self._part = Part(program, _Given(edited, program, sources), [alone], made, is_alone=False)
        self.captured = [name for name in self._part.reads if name not in sources]

    def __call__(self, run: Run, *inputs: Any) -> Any:
        """Its result; a tuple if it has several."""
        inner = Run({**run.values, **dict(zip(self._names, self._inputs.flat(inputs), strict=True))}, run.options)
        self._part(inner)
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
        return source is not None and (self._program.is_constant(source) or self._edited.is_constant(source))


def locked(value: Any) -> Any:
    """The same elements, to which routines can't write."""
    if not isinstance(value, np.ndarray):
        return value
    view = value.view()
    view.setflags(write=False)
    return view


def _every(position: int) -> bool:
    return True


def _none(position: int) -> bool:
    return False


def _equal(one: Any, other: Any) -> bool:
    return one is other or (one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes())
