"""Taps: the steps of a chain that run routines of tools."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from amanda import _core
from amanda.drivers.onnxruntime import kinds
from amanda.drivers.onnxruntime.operands import Operands


class Edited(Protocol):
    """The types of values that routines made."""

    def kind_of(self, name: str) -> str: ...
    def is_constant(self, name: str) -> bool: ...


class Run:
    """One run of a graph, or of a body."""

    __slots__ = ("options", "results", "states", "values")

    def __init__(self, values: dict[str, Any], options: Any) -> None:
        self.values, self.options = values, options
        self.states: dict[int, _core.RunState] = {}  # by the operator's id
        self.results: dict[str, Any] = {}  # of the program's, where `values` has what routines get


class Original(Protocol):
    """An operator that a routine replaces."""

    captured: list[str]

    def __call__(self, run: Run, *inputs: Any) -> Any: ...


Reader = Callable[[dict[str, Any]], Sequence[Any]]
Look = tuple[Callable[..., Any], _core.OpSite, Reader, Reader, "TapStep | None"]


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
        self._inputs = inputs.reader(takes)
        self._outputs: Reader = own.reader(gets) if is_after else _nothing
        edits = _every if original is not None else _none if tap.kind == "observe" else tap.selects
        before = own.chosen(edits)
        #: By the index of an operand, the name of its new value.
        self.writes = {i: f"{name}@{tap.id}.{i}" for i, name in before.items()}  # a node may read a value twice
        self._dtypes = {i: kinds.dtype_of(edited.kind_of(name)) for i, name in before.items()}
        self._arrays = [(i, name) for i, name in self.writes.items() if self._dtypes[i] is not None]
        self._others = [(i, name) for i, name in self.writes.items() if self._dtypes[i] is None]
        self._checks = self._check  # bound once
        self._is_plain_edit = bool(self.writes) and share is None and original is None
        captured = original.captured if original is not None else []
        self.shows = {*takes.values(), *gets.values()}
        self.reads = list(dict.fromkeys([*takes.values(), *gets.values(), *captured]))

    def __call__(self, run: Run) -> None:
        values = run.values
        if self._is_plain_edit:  # keywords cost: half a microsecond all, or a quarter one
            results = self._run(self._site, self._inputs(values), self._outputs(values), check=self._checks)
        else:
            results = self._run(
                self._site,
                self._inputs(values),
                self._outputs(values),
                original=None if self._original is None else functools.partial(self._original, run),
                state=None if self._share is None else self._state(run),
                check=self._checks if self.writes else None,
            )
        if not self.writes:
            return
        flat = self._own.flat(results)
        for index, name in self._arrays:
            value = flat[index]
            if type(value) is not np.ndarray or not value.flags.c_contiguous:
                value = np.asarray(value, order="C")  # ascontiguousarray() makes a number an array of one
            values[name] = value
        for index, name in self._others:
            values[name] = flat[index]

    def look(self) -> Look:
        """The routines and their operands, of a step that only looks."""
        return self._run, self._site, self._inputs, self._outputs, None if self._share is None else self

    def _state(self, run: Run) -> _core.RunState:
        assert self._share is not None
        key = id(self._site)
        if key not in run.states:
            run.states[key] = self._share()
        return run.states[key]

    def _check(self, position: int, given: Any) -> str | None:
        """Why ONNX Runtime does not take what a routine gives; None if it does."""
        if self._own.is_plain and type(given) is np.ndarray and given.dtype == self._dtypes.get(position):
            return None
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


class Looks:
    """Runs the routines of taps that only look, one after another: a call for each would take a tenth of what it does."""

    writes: Mapping[int, str] = {}

    def __init__(self, steps: Sequence[TapStep]) -> None:
        self._looks = [step.look() for step in steps]
        self.shows = {name for step in steps for name in step.shows}
        self.reads = list(dict.fromkeys(name for step in steps for name in step.reads))

    def __call__(self, run: Run) -> None:
        values = run.values
        for look, site, inputs, outputs, shares in self._looks:
            if shares is None:
                look(site, inputs(values), outputs(values))  # a keyword costs half a microsecond
            else:
                shares(run)


def _nothing(values: dict[str, Any]) -> Sequence[Any]:
    return ()


def _every(position: int) -> bool:
    return True


def _none(position: int) -> bool:
    return False
