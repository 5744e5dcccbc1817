"""A graph of Dynamo's that runs compiled, with the taps of the tools that are in force when it runs."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from amanda import _core, _torch
from amanda.drivers.torch_compile import attach, copies, instances, late, port, uninstrumented
from amanda.drivers.torch_compile.graph_site import GraphSite
from amanda.drivers.torch_compile.lowering import lower
from amanda.drivers.torch_compile.places import Places
from amanda.drivers.torch_compile.program import Program


@dataclasses.dataclass(eq=False, frozen=True, slots=True)
class _Built:
    """The graph for one toolset, and one instance of the modules that it takes from outside."""

    function: Callable[..., Any]
    extra: tuple[Any, ...]  # what it gets after the program's own inputs
    keep: Any = None


class CompiledFunction:
    """What a backend returns to Dynamo is `run`.

    It is built for each toolset and each instance when it first runs under them. Where the lowered graphs are alike,
    their code is compiled once.
    """

    def __init__(self, gm: Any, example_inputs: Sequence[Any], inner: Any, name: str) -> None:
        self._gm, self._inner, self._name = gm, inner, name
        self.inner_failed = False
        self._lock = threading.RLock()
        self._built: dict[tuple[_core.Toolset | None, Hashable], _Built] = {}
        self._compiled: dict[Hashable, Callable[..., Any]] = {}  # by the structure of lowered graphs; None: as it was
        self._programs: dict[Hashable, Program] = {}  # by instance: an operator's operands are its parameters
        self._late: late.Inputs | None = None  # once Dynamo is done with the graph

    def prepare(self, example_inputs: Sequence[Any]) -> None:
        """Builds it for what is in force now, while Dynamo compiles."""
        toolset = attach.COMPILE.toolset()
        self._build(toolset, instances.instance_key(example_inputs), example_inputs)
        self._late = late.Inputs(self._gm)

    def run(self, *args: Any) -> Any:
        toolset = attach.COMPILE.toolset()
        key = toolset, instances.instance_key(args)
        built = self._built.get(key) or self._build_late(*key, args)
        _torch.enter_compiled()
        try:
            return built.function(*args, *built.extra)
        finally:
            _torch.leave_compiled()

    def _build_late(self, toolset: _core.Toolset | None, instance: Hashable, args: Sequence[Any]) -> _Built:
        with port.compile_lock, self._lock:  # in the order in which Dynamo takes them
            _torch.enter_compiled()
            try:
                return self._built.get((toolset, instance)) or late.compiling(self._build, toolset, instance, args)
            finally:
                _torch.leave_compiled()

    def _build(self, toolset: _core.Toolset | None, instance: Hashable, args: Sequence[Any]) -> _Built:
        lowered = None if toolset is None else self._lowered(toolset, instance, args)
        built = None
        if lowered is not None:
            built = self._instrumented(lowered, args)
        if built is None:
            built = _Built(self._vanilla(args), ())
        self._forget()
        self._built[toolset, instance] = built
        return built

    def _lowered(self, toolset: _core.Toolset, instance: Hashable, args: Sequence[Any]) -> Any:
        program = self._programs.get(instance)
        if program is None:
            program = self._programs[instance] = Program(self._gm, args)
        site = GraphSite(program, Places(program, instance), lambda plans: lower(program, plans))
        return _core.instrument(toolset, attach.COMPILE, site).lowered

    def _instrumented(self, lowered: Any, args: Sequence[Any]) -> _Built | None:
        compiled = self._compiled.get(lowered.structure)
        if compiled is None:
            try:
                compiled = self._inner(lowered.gm, self._inputs(args, lowered.extra))
            except port.RestartAnalysis:
                raise
            except Exception as error:
                uninstrumented.say(self._gm, self._name, error)
                return None
            self._compiled[lowered.structure] = compiled
        return _Built(compiled, tuple(lowered.extra), lowered.keep)

    def _vanilla(self, args: Sequence[Any]) -> Callable[..., Any]:
        compiled = self._compiled.get(None)
        if compiled is None:
            try:
                compiled = self._inner(copies.copy_of(self._gm), self._inputs(args, ()))
            except Exception:
                self.inner_failed = True
                raise
            self._compiled[None] = compiled
        return compiled

    def _inputs(self, args: Sequence[Any], extra: Sequence[Any]) -> list[Any]:
        return [*args, *extra] if self._late is None else self._late.of(args, extra)

    def _forget(self) -> None:
        """Releases what no toolset will ask for again."""
        for key in [key for key in self._built if key[0] is not None and key[0].is_over()]:
            del self._built[key]
