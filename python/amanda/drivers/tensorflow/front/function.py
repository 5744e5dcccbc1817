"""The front for tf.function: a function is traced once for each set of tools, and taps are put into the new graph.

Graphs of loops and conditionals are built, and instrumented, before the function's own; those of gradients after it,
perhaps when the scope was left already: they belong to the tools of their forward graph.
"""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

import tensorflow as tf

from amanda import _core
from amanda.drivers.tensorflow import port
from amanda.drivers.tensorflow.front import copied, running, unasked, unsupported
from amanda.drivers.tensorflow.front.running import Instrumented, instrumented
from amanda.drivers.tensorflow.lower import gradient_order, in_place, vectorized
from amanda.drivers.tensorflow.view import attach, bodies, coverage, graph_site, variable_gradients


class Build(NamedTuple):
    """A graph that this thread builds, and those inside it."""

    toolset: _core.Toolset | None
    is_vanilla: bool = False  # functions that are traced inside it are vanilla, too
    creator: Any = None  # the tf.function, if this is the trace in which it may create variables

    @property
    def creates_variables(self) -> bool:
        return bool(self.creator is not None and port.created_variables(self.creator))


# The attribute of a concrete function that has what the program asked for.
_ASKED = "_amanda_asked"

VANILLA = Build(None, is_vanilla=True)


class _Thread(threading.local):
    def __init__(self) -> None:
        self.builds: list[Build] = []
        self.error: BaseException | None = None  # what instrumenting raised: the program's code may wrap it
        self.creator: Any = None


_here = _Thread()


class building:
    """Functions that are built inside belong to `build`."""

    def __init__(self, build: Build) -> None:
        self._build = build

    def __enter__(self) -> None:
        _here.builds.append(self._build)

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        _here.builds.pop()
        if not _here.builds:
            own, _here.error = _here.error, None
            if own is not None and error is not None and own is not error:
                raise own


def watch() -> None:
    """When the driver is loaded: concrete functions that the program asks for before it opens a scope."""
    port.get_concrete_function.replace(_get_concrete_function)


def patch() -> None:
    """The first scope was opened."""
    _patch_for_ever()
    for patchable, replacement in _PATCHES.items():
        patchable.replace(replacement)


def unpatch() -> None:
    """No scope is open any more."""
    for patchable in _PATCHES:
        patchable.restore()


def _patch_for_ever() -> None:
    """Patches for graphs that have taps already: their gradients may be built when no scope is open."""
    if _transform in port.graph_transforms:
        return
    port.graph_transforms.append(_transform)
    port.concrete_function_callbacks.append(lambda function: _mark(function))
    port.make_forward_backward.replace(_make_forward_backward)
    port.build_gradients.replace(_build_gradients)
    port.queue_of_gradients.replace(gradient_order.Collections())
    port.initialize_variables.replace(_initialize_variables)


# Which tools a trace is for.


def _define(args: Any, kwargs: Any, options: Any) -> Any:
    """Looks a function's trace up, or makes it."""
    creator, _here.creator = _here.creator, None
    build = _build_of(options, creator)
    before = len(options.function_cache) if options.function_cache is not None else 0
    with building(build):
        found = port.define_function.original(args, kwargs, options)
        if build.toolset is not None and unasked.is_outdated(found):
            port.forget_function(options.function_cache, found, _make_context(options.scope_type))
            found = port.define_function.original(args, kwargs, options)
    if build.toolset is not None and options.function_cache is not None and len(options.function_cache) != before:
        _forget(options.function_cache)
    return found


def _build_of(options: Any, creator: Any) -> Build:
    if _here.builds and (_here.builds[-1].is_vanilla or any(build.creates_variables for build in _here.builds)):
        return VANILLA
    toolset = attach.FUNCTION.toolset()
    if toolset is None:
        return Build(None, creator=creator)
    attributes = options.attributes or {}
    if port.in_save_context() or not port.eager_outside_functions() or attributes.get(port.DATASET_FUNCTION):
        return VANILLA
    if tf.distribute.has_strategy():
        unsupported.warn_of_strategy(tf.distribute.get_strategy())
        return VANILLA
    if attributes.get(port.XLA_COMPILE) or port.in_xla(tf.compat.v1.get_default_graph()):
        unsupported.warn(
            "a function with jit_compile=True runs uninstrumented, and tools do not see its operators: XLA compiles it "
            "as a whole; use jit_compile=False"
        )
        return VANILLA
    return Build(toolset, creator=creator)


def _create(function_type: Any, type_context: Any, graph: Any, options: Any) -> Any:
    """Makes a trace that is not in the cache, or takes that without tools, or a copy of it."""
    build = _here.builds[0] if len(_here.builds) == 1 else VANILLA
    if build.toolset is not None and build.creator is None:
        vanilla = unasked.trace_of(function_type, options)
        if vanilla is not None:
            if unasked.share(vanilla):
                return vanilla
            copy = copied.copy(vanilla, build.toolset, options.attributes)
            if copy is not None:
                return copy
    return port.create_function.original(function_type, type_context, graph, options)


def _make_context(scope_type: Any = None) -> Any:
    """A part of the key under which a function's trace is kept."""
    made = port.make_function_context.original(scope_type)
    toolset = _here.builds[-1].toolset if _here.builds else None
    return made if toolset is None else port.FunctionContext((made.context, toolset), made.scope_type)


def _forget(cache: Any) -> None:
    """Traces whose tools are no longer applied cannot be asked for again."""
    for context in port.cached_contexts(cache):
        key = context.context
        if isinstance(key, tuple) and isinstance(key[-1], _core.Toolset) and key[-1].is_over():
            port.forget_context(cache, context)


def _initialize(function: Any, args: Any, kwds: Any, add_initializers_to: Any = None) -> Any:
    """The first trace of a function. If it creates variables, that is all it is good for, and the function is traced
    again to run: an error of a tool would leave it with variables that were never initialized."""
    _here.creator = function
    try:
        return port.initialize_function.original(function, args, kwds, add_initializers_to)
    finally:
        _here.creator = None


def _initialize_variables(function: Any, initializers: Any) -> Any:
    with building(VANILLA):
        return port.initialize_variables.original(function, initializers)


# Concrete functions. The program gets vanilla ones, whose graphs it may look at and save. In a scope they run as the
# function does from which they come.


def _get_concrete_function(function: Any, *args: Any, **kwargs: Any) -> Any:
    with building(VANILLA):
        found = port.get_concrete_function.original(function, *args, **kwargs)
    setattr(found, _ASKED, (function, *_specs((args, kwargs))))
    return found


def _specs(arguments: Any) -> Any:
    """The arguments without the values of tensors, which would be kept."""
    return tf.nest.map_structure(
        lambda value: tf.type_spec_from_value(value) if tf.is_tensor(value) else value, arguments
    )


def _call(concrete: Any, tensor_inputs: Any, captured_inputs: Any) -> Any:
    asked = getattr(concrete, _ASKED, None)
    if asked is None or (_here.builds and _here.builds[-1].is_vanilla) or attach.FUNCTION.toolset() is None:
        return port.call_concrete_function.original(concrete, tensor_inputs, captured_inputs)
    found = port.concrete_function(*asked)
    if found is not concrete:
        captured_inputs = found.captured_inputs
    return port.call_concrete_function.original(found, tensor_inputs, captured_inputs)


# Graphs.


def _transform(graph: Any) -> None:
    """A graph is complete."""
    build = _here.builds[-1] if _here.builds else VANILLA
    if build.toolset is None or build.creates_variables or instrumented(graph) is not None:
        return
    if unsupported.is_distributed(graph):
        return
    try:
        _instrument(graph, build.toolset)
    except BaseException as error:
        _here.error = error
        raise


def _instrument(graph: Any, toolset: _core.Toolset) -> None:
    vectorized.leave_bodies_out(graph)
    operators = bodies.without_counters(graph, in_place.running(graph))
    is_in_force = attach.FUNCTION.toolset() == toolset  # not if a gradient is built after its forward graph's scope
    site = graph_site.GraphSite(
        attach.FUNCTION,
        operators,
        lambda plans: _lower(graph, site, plans),
        position=bodies.position_of(graph),
        elsewhere=_shown_elsewhere,
        wants=attach.FUNCTION.wants if is_in_force and not coverage.is_open() else None,
    )
    artifact = _core.instrument(toolset, attach.FUNCTION, site)
    running.note(graph, Instrumented(toolset, site.shown, artifact))
    in_place.keep_calls(graph, operators, running.runs_taps)


def _lower(graph: Any, site: graph_site.GraphSite, plans: graph_site.Plans) -> object:
    return in_place.InPlace(graph, site.gradients).insert(plans)


def _shown_elsewhere(op: tf.Operation) -> graph_site.Shown | None:
    """An operator of another graph."""
    known = instrumented(op.graph)
    return known.shown.get(op) if known else None


# Gradients.


def _make_forward_backward(attributes: Any, forward_graph: Any, backward_graph: Any) -> Any:
    """The pair of functions that an outer tape runs."""
    known = instrumented(forward_graph)
    if known is not None:
        with building(Build(known.toolset)):
            _transform(backward_graph)
    forward, backward = port.make_forward_backward.original(attributes, forward_graph, backward_graph)
    running.mark(forward)
    _mark(backward)
    return forward, backward


def _build_gradients(*args: Any, **kwargs: Any) -> Any:
    """Gradients of a graph's operators belong to its tools, wherever and whenever they are built."""
    graph = kwargs.get("src_graph")
    if not port.is_function(graph):
        return variable_gradients.build(*args, **kwargs)
    known = instrumented(graph)
    with building(Build(known.toolset) if known else VANILLA):
        return variable_gradients.build(*args, **kwargs)


def _mark(function: Any) -> None:
    running.mark(port.inference_function(function))


_PATCHES = {
    port.define_function: _define,
    port.make_function_context: _make_context,
    port.create_function: _create,
    port.initialize_function: _initialize,
    port.call_concrete_function: _call,
}
