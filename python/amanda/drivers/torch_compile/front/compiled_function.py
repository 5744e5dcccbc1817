"""A graph of Dynamo's that runs compiled, with the taps of the tools that are in force when it runs."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from amanda import _core, _torch
from amanda.core import scope
from amanda.drivers.torch import recomputation
from amanda.drivers.torch.compiled import running_function
from amanda.drivers.torch_compile import port
from amanda.drivers.torch_compile.front import compiled_graphs, late, listeners, uninstrumented
from amanda.drivers.torch_compile.front.failures import NoTapsError
from amanda.drivers.torch_compile.inductor.compiling import compiling
from amanda.drivers.torch_compile.lower.lowering import Lowered, lower
from amanda.drivers.torch_compile.places import origins
from amanda.drivers.torch_compile.places.instances import Instance, Instances
from amanda.drivers.torch_compile.places.places import Places
from amanda.drivers.torch_compile.program import copies
from amanda.drivers.torch_compile.program.refusals import unshown_gradients
from amanda.drivers.torch_compile.program.shared_program import SharedProgram
from amanda.drivers.torch_compile.view import attach, coverage
from amanda.drivers.torch_compile.view.graph_site import GraphSite, Plans


@dataclasses.dataclass(eq=False, frozen=True, slots=True)
class _Built:
    """The graph for one toolset, and one instance of the modules that it takes from outside."""

    function: Callable[..., Any]
    extra: tuple[Any, ...]  # its inputs after the program's own inputs
    keep: Any = None
    unseen: tuple[tuple[str, str], ...] = ()  # what each run reports to its scopes; see scope.note_unseen


class CompiledFunction:
    """A compiled function. The backend returns its method `run` to Dynamo.

    It is built for each toolset and each instance when it first runs under them. Where the lowered graphs are alike,
    their code is compiled once.
    """

    def __init__(self, gm: Any, example_inputs: Sequence[Any], inner: Any, name: str) -> None:
        self._gm, self._inner, self._name = gm, inner, name
        self.inner_failed = False
        self._lock = threading.RLock()
        self._instances = Instances(gm, example_inputs)
        self._vanilla: _Built | None = None
        self._compiled: dict[Hashable, Callable[..., Any]] = {}  # by the structure of lowered graphs
        self._program: SharedProgram | None = None
        self._unknown = ""  # why it can't be learned
        self._shown: compiled_graphs.Graph | None = None  # to listeners
        self._late: late.Inputs | None = None  # once Dynamo is done with the graph

    def prepare(self, example_inputs: Sequence[Any]) -> None:
        """Builds it for what is in force now, while Dynamo compiles."""
        toolset = attach.COMPILE.toolset()
        if toolset is None:
            self._vanilla = self._build_vanilla(example_inputs)
        else:
            self._build(toolset, self._instances.of(example_inputs), example_inputs)
        self._late = late.Inputs(self._gm)

    def run(self, *args: Any) -> Any:
        if listeners.is_listening():
            self._tell(args)
        if not recomputation.is_pending():
            return _run(self._built_now(args), args)
        instance = self._instances.of(args)
        first = recomputation.repeated()
        again = first.graphs.get(instance) if first else None
        built = again or self._built_now(args)
        recomputation.keep_graph(instance, built)
        toolset = attach.COMPILE.toolset()
        if again and not (toolset and again is instance.built.get(toolset)):  # its taps are those of other scopes
            scope.note_unseen("opaque", uninstrumented.function_of(self._gm))
        return _run(built, args)

    def _tell(self, args: Sequence[Any]) -> None:
        vanilla = self._vanilla or self._build_late(self._build_vanilla, args)
        if self._shown is None:
            backend = compiled_graphs.Backend(self._inner, self._name)
            self._shown = compiled_graphs.Graph(self._gm, running_function(), backend, vanilla.function)
        self._shown.instance = self._instances.of(args)
        _torch.enter_graph()
        try:
            with port.disable_current_modes(), port.without_saved_tensor_hooks():
                listeners.tell(self._shown, args)
        finally:
            _torch.leave_graph()

    def _built_now(self, args: Sequence[Any]) -> _Built:
        toolset = attach.COMPILE.toolset()
        if toolset is None:
            return self._vanilla or self._build_late(self._build_vanilla, args)
        instance = self._instances.of(args)
        return instance.built.get(toolset) or self._build_late(self._build, toolset, instance, args)

    def _build_late(self, build: Callable[..., _Built], *args: Any) -> _Built:
        with port.compile_lock, self._lock:  # in the order in which Dynamo takes them
            _torch.enter_graph()
            try:
                assert self._late is not None  # Dynamo has had the result of prepare()
                late: _Built = self._late.compiling(build, *args)
                return late
            except Exception as error:
                if scope.compiled_here() == "auto":  # other graphs of the function may have run
                    error.add_note(
                        '[scope] in a function that is compiled with torch.compile; with compiled="eager" it runs eagerly'
                    )
                raise
            finally:
                _torch.leave_graph()

    def _build(self, toolset: _core.Toolset, instance: Instance, args: Sequence[Any]) -> _Built:
        known: dict[_core.Toolset, _Built] = instance.built
        if toolset not in known:  # another thread may have built it
            for over in [other for other in known if other.is_over()]:
                del known[over]
            known[toolset] = self._instrumented(toolset, instance, args) or self._build_vanilla(args)
        return known[toolset]

    def _build_vanilla(self, args: Sequence[Any]) -> _Built:
        if self._vanilla is None:
            try:
                compiled = self._compile(copies.copy_of(self._gm), args, ())
            except Exception:
                self.inner_failed = True
                raise
            self._vanilla = _Built(compiled, ())
        return self._vanilla

    def _instrumented(self, toolset: _core.Toolset, instance: Instance, args: Sequence[Any]) -> _Built | None:
        """The function with taps; None if the original is to run."""
        if not self._learn(args):
            coverage.count((), uninstrumented.operators_of(self._gm), runs_with_tools=False)
            return self._without_tools(args, self._unknown)
        with port.without_saved_tensor_hooks():  # the operators that run here are not the program's
            site, artifact = self._analyzed(toolset, instance, args)
        built = None if artifact.lowered is None else self._lowered(artifact.lowered, args)
        if artifact.failure:
            built = self._without_tools(args, artifact.failure)
        runs_with_tools = not (built and built.unseen)
        coverage.count(site.shown, artifact.unseen, runs_with_tools)
        if not runs_with_tools or not artifact.unseen:
            return built
        hidden = tuple(("hidden", what) for what, _ in artifact.unseen)
        return dataclasses.replace(built or self._build_vanilla(args), unseen=hidden)

    def _learn(self, args: Sequence[Any]) -> bool:
        """False if the operators that the function calls cannot be found out, or if no taps can run next to them."""
        if self._program is None and not self._unknown:
            try:
                if hasattr(self._gm, port.INLINED_HOOKS):  # they would change what taps save instead
                    raise NotImplementedError("the program's hooks on saved tensors are compiled into it")
                with port.without_saved_tensor_hooks():  # the operators that run here are not the program's
                    self._program = SharedProgram(self._gm, args)
            except Exception as error:  # no tool has been called yet: the program goes on
                self._unknown = uninstrumented.described("no taps can be put into it", error)
        return self._program is not None

    def _without_tools(self, args: Sequence[Any], why: str) -> _Built:
        if self._late is None and scope.compiled_here() == "auto":  # nothing of the frame has run yet
            raise NoTapsError(why)
        uninstrumented.say(self._gm, why)
        function = uninstrumented.function_of(self._gm)
        return dataclasses.replace(self._build_vanilla(args), unseen=(("refused", function),))

    def _analyzed(
        self, toolset: _core.Toolset, instance: Instance, args: Sequence[Any]
    ) -> tuple[GraphSite, _core.Artifact]:
        assert self._program is not None
        with self._program.on(args) as program:
            places = Places(instance)
            refused: list[str] = []

            def lowered(plans: Plans) -> Lowered | None:
                refused.extend(filter(None, (unshown_gradients(shown.call, taps) for shown, taps in plans)))
                return None if refused else lower(program, plans)

            site = GraphSite(program, places, lowered)
            with origins.of(program, places):
                artifact = _core.instrument(toolset, attach.COMPILE, site)
        if refused:
            raise _core.Error(refused[0])
        return site, artifact

    def _lowered(self, lowered: Any, args: Sequence[Any]) -> _Built:
        compiled = self._compiled.get(lowered.structure)
        if compiled is None:
            try:
                with port.compiling_backward(at_once=lowered.has_backward), compiling(lowered.gm, self._name):
                    compiled = self._compile(lowered.gm, args, lowered.extra)
            except port.RestartAnalysis:
                raise
            except Exception as error:
                why = uninstrumented.described(f"the backend {self._name} could not compile it with taps", error)
                return self._without_tools(args, why)
            self._compiled[lowered.structure] = compiled
        return _Built(compiled, tuple(lowered.extra), lowered.keep)

    def _compile(self, gm: Any, args: Sequence[Any], extra: Sequence[Any]) -> Callable[..., Any]:
        if self._late is None:
            return self._inner(gm, [*args, *extra])  # type: ignore[no-any-return]
        return self._late.compile(self._inner, gm, args, extra)


def _run(built: _Built, args: Sequence[Any]) -> Any:
    for reason, name in built.unseen:
        scope.note_unseen(reason, name)
    _torch.enter_graph()
    try:
        return built.function(*args, *built.extra)
    finally:
        _torch.leave_graph()
