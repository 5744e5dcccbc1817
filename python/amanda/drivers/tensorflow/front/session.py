"""The front of v1 graphs: what a Session runs while scopes are open."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from amanda import _core
from amanda.drivers.tensorflow import port
from amanda.drivers.tensorflow.front import running, unasked
from amanda.drivers.tensorflow.front.unsupported import warn
from amanda.drivers.tensorflow.lower import nodes
from amanda.drivers.tensorflow.lower.behind import Behind
from amanda.drivers.tensorflow.lower.cone import Cone
from amanda.drivers.tensorflow.lower.copies import Copies
from amanda.drivers.tensorflow.view import attach, bodies, coverage, op_types, order
from amanda.drivers.tensorflow.view.called import Body, CalledFunctions
from amanda.drivers.tensorflow.view.graph_site import GraphSite, Plans, Shown
from amanda.drivers.tensorflow.view.saved import SavedValues

_CACHE = "_amanda_artifacts"  # the attribute of a graph that has its ArtifactCache
_MANY_CONES = 64
_OPTIONS = "_amanda_options"  # of a callable that was made from options


class Lowered(NamedTuple):
    """The operators that run instead."""

    fetches: list[Any]  # as TensorFlow's C API takes them
    targets: list[tf.Operation]  # in the C API's form they would keep the graph alive
    kept: list[object]


class BodySite(GraphSite):
    """The operators of a function that the graph calls."""

    def __init__(
        self,
        body: Body,
        called: CalledFunctions,
        elsewhere: Callable[[tf.Operation], Shown | None],
        saved: Callable[[], SavedValues],
    ) -> None:
        super().__init__(
            attach.GRAPH,
            body.operators,
            lambda plans: None,
            position=bodies.position_of(body.graph),
            elsewhere=elsewhere,
            wants=None if coverage.is_open() else attach.GRAPH.wants,
        )
        self._called, self._saved = called, saved

    def show_call(self, op: tf.Operation, visitor: _core.GraphVisitor) -> None:
        _report_unseen(self._called, op, visitor)

    def refuse_edit(self, op: tf.Operation, point: str, tensor: tf.Tensor) -> str | None:
        return self._saved().refuse(op, point, tensor)


def _report_unseen(called: CalledFunctions, op: tf.Operation, visitor: _core.GraphVisitor) -> None:
    """Reports the functions that a call runs and that tools are not shown."""
    reason = called.reason(op)
    if reason is None:
        return
    visitor.unseen(op.name, f"{op.type} in a v1 graph calls functions whose operators are not shown: {reason}")
    ignored = op_types.PLUMBING | op_types.CALLS | op_types.IDENTITIES
    inside = [
        node.op for definition in called.definitions(op) for node in definition.node_def if node.op not in ignored
    ]
    for type in inside:
        coverage.skipped(type, "graph")
    known = filter(None, map(port.find_op_def, set(inside)))
    if not inside or any(attach.GRAPH.wants(op_types.intern_definition(attach.GRAPH, each)) for each in known):
        warn(f"a Session runs functions, and tools are not shown the operators in them: {reason}")


class SessionSite(GraphSite):
    """The operators that a session runs for some fetches and targets."""

    def __init__(
        self,
        graph: tf.Graph,
        fetches: Sequence[tf.Tensor],
        targets: Sequence[tf.Operation],
        feeds: Sequence[tf.Tensor],
    ) -> None:
        super().__init__(attach.GRAPH, (), self._build)
        self._graph, self._fetches, self._targets = graph, fetches, targets
        self._fed = frozenset(map(id, feeds))
        self._sites: dict[Any, BodySite] = {}  # by graph
        self._in_bodies: dict[Any, Plans] = {}

    def each_op(self, visitor: _core.GraphVisitor) -> None:
        roots = [tensor.op for tensor in self._fetches if id(tensor) not in self._fed] + [*self._targets]
        # As they were created: taps of a backward operator wait for those of its forward operator, which come first then.
        created = {op: i for i, op in enumerate(self._graph.get_operations())}
        self.operators = order.to_run(sorted(roots, key=lambda op: created.get(op, len(created))), self._fed)
        called = self._called = CalledFunctions(self._graph, self.operators)
        self._keep_streams(called)
        saved = self._saved = functools.cache(lambda: SavedValues(called, self.operators))
        for body in called.bodies():
            site = self._sites[body.graph] = BodySite(body, called, self._shown_in_bodies, saved)
            site.each_op(visitor)
        super().each_op(visitor)

    def lower(self, sites: list[tuple[int, list[_core.Tap]]]) -> object:
        shown = [each for site in self._sites.values() for each in site.shown.values()]
        for index, taps in sites:
            if index < len(shown):
                self._in_bodies.setdefault(shown[index].op.graph, []).append((shown[index], taps))
        return super().lower([(index - len(shown), taps) for index, taps in sites if index >= len(shown)])

    def show_call(self, op: tf.Operation, visitor: _core.GraphVisitor) -> None:
        _report_unseen(self._called, op, visitor)

    def _shown_in_bodies(self, op: tf.Operation) -> Shown | None:
        return next((site.shown[op] for site in self._sites.values() if op in site.shown), None)

    def _keep_streams(self, called: CalledFunctions) -> None:
        """Calls are copied with all that is behind them. If that draws random numbers, the copies would draw others, so
        that the calls are left as they are."""
        if not any(op_types.draws(op) or called.keeps_state(op) for op in self.operators):
            return
        seen: set[Any] = set()
        if not (
            coverage.is_open() or any(unasked.is_asked_for(body.graph, attach.GRAPH, seen) for body in called.bodies())
        ):
            return
        behind = Behind(self.operators, self._fed, called.keeps_state)
        for op in self.operators:
            if op.type in op_types.CALLS and called.reason(op) is None and behind.draws(op):
                called.forbid(
                    port.function_names(op), "random numbers are drawn behind them, which a copy would change"
                )

    def _build(self, plans: Plans) -> Lowered:
        edited = [
            shown.op
            for in_body in self._in_bodies.values()
            for shown, taps in in_body
            if any(tap.kind != "observe" for tap in taps)
        ]
        functions = Copies(self._graph, self.backend, edited, self._saved)
        cone = Cone(self, plans, self._fed, functions)
        is_final = self._graph.finalized
        ours = nodes.of(self._graph)
        ours.cones += 1
        if ours.cones > _MANY_CONES:
            warn(
                f"a v1 graph was instrumented {_MANY_CONES} times, and keeps what was added each time: enter the same "
                "scope object again instead of a new amanda.apply() for each run"
            )
        with ours.lock, port.no_session_extends(self._graph):
            if is_final:
                port.unfinalize(self._graph)
            try:
                for function in self._called.functions:
                    graph = function.graph
                    functions.add(function, self._sites[graph], self._in_bodies.get(graph, []))
                cone.build()
                targets = [*(cone.operation(op) for op in self._targets), *cone.targets]
            finally:
                if is_final:
                    self._graph.finalize()
        return Lowered(
            [port.output_of(cone.value(tensor)) for tensor in self._fetches],
            list(dict.fromkeys(targets)),
            cone.kept,
        )


def lowered(
    toolset: _core.Toolset,
    graph: tf.Graph,
    fetches: Sequence[tf.Tensor],
    targets: Sequence[tf.Operation],
    feeds: Sequence[tf.Tensor],
) -> Lowered | None:
    """The operators that run instead under these tools; None if the original runs."""
    cache: _core.ArtifactCache | None = getattr(graph, _CACHE, None)
    if cache is None:
        with nodes.of(graph).lock:
            cache = getattr(graph, _CACHE, None) or _core.ArtifactCache()
            setattr(graph, _CACHE, cache)
    names = [[each.name for each in elements] for elements in (fetches, targets)]
    signature = repr((*names, sorted(tensor.name for tensor in feeds)))
    artifact = cache.get(toolset, signature, attach.GRAPH, SessionSite(graph, fetches, targets, feeds))
    found: Lowered | None = artifact.lowered
    return found


# ---- patches ---------------------------------------------------------------------------------------------------------


def watch() -> None:
    """From now on, the options of callables are remembered when these are made: they may be called in scopes later."""
    make = port.make_callable.original

    @functools.wraps(make)
    def make_and_remember(self: Any, options: Any) -> Any:
        made = make(self, options)
        remembered = type(options)()
        remembered.CopyFrom(options)
        setattr(made, _OPTIONS, remembered)
        return made

    port.make_callable.replace(make_and_remember)


def patch() -> None:
    port.run_session.replace(_run)
    port.run_callable.replace(_run_callable)
    port.run_part.replace(_run_part)


def unpatch() -> None:
    port.run_session.restore()
    port.run_callable.restore()
    port.run_part.restore()


@functools.wraps(port.run_session.original)
def _run(
    self: Any, options: Any, feed_dict: dict[Any, Any], fetch_list: list[Any], target_list: list[Any], run_metadata: Any
) -> Any:
    run = port.run_session.original
    toolset = attach.GRAPH.toolset()
    if toolset is None or not _can_run(self):
        return run(self, options, feed_dict, fetch_list, target_list, run_metadata)
    graph = self.graph
    instead = lowered(
        toolset,
        graph,
        [port.tensor_of(graph, fetch) for fetch in fetch_list],
        [port.operation_of(graph, target) for target in target_list],
        [port.tensor_of(graph, feed) for feed in feed_dict],
    )
    if instead is None:
        return run(self, options, feed_dict, fetch_list, target_list, run_metadata)
    port.extend(self)
    targets = list(map(port.c_op_of, instead.targets))
    return running.run_with_taps(run, self, options, feed_dict, instead.fetches, targets, run_metadata)


@functools.wraps(port.run_callable.original)
def _run_callable(self: Any, *args: Any, **kwargs: Any) -> Any:
    toolset = attach.GRAPH.toolset()
    session = port.session_of(self)
    if toolset is None or not _can_run(session) or not _can_call(self):
        return port.run_callable.original(self, *args, **kwargs)
    options, graph = getattr(self, _OPTIONS), session.graph
    fetches = [graph.as_graph_element(name) for name in options.fetch]
    targets = [graph.get_operation_by_name(name) for name in options.target]
    feeds = [graph.as_graph_element(name) for name in options.feed]
    if lowered(toolset, graph, fetches, targets, feeds) is None:
        return port.run_callable.original(self, *args, **kwargs)
    # run() finds the same artifact.
    results = session.run(
        [*fetches, *targets], dict(zip(feeds, args, strict=True)), options.run_options, kwargs.get("run_metadata")
    )
    return results[: len(fetches)]


@functools.wraps(port.run_part.original)
def _run_part(self: Any, *args: Any) -> Any:
    if attach.GRAPH.toolset() is not None:
        warn("partial_run() runs without tools; use run()")
    return port.run_part.original(self, *args)


def _can_run(session: Any) -> bool:
    if port.is_remote(session):
        warn("a session on another process runs without tools; use a session of this process, without a target")
        return False
    return True


def _can_call(run: Any) -> bool:
    options = getattr(run, _OPTIONS, None)
    if options is None or options.tensor_connection:
        warn(
            "a callable that connects tensors, or that was made before amanda was loaded, runs without tools; use run()"
        )
        return False
    return True
