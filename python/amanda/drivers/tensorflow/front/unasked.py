"""Traces of functions that no tool asks for anything in: a scope runs them as they are, and traces nothing again.

Gradients that a tape outside the function computes are graphs of their own, which need not have the operators of the
function alone. So a function that runs under a tape is traced for the tools.
"""

from __future__ import annotations

from typing import Any

from amanda import _core
from amanda.drivers.tensorflow import port
from amanda.drivers.tensorflow.front import unsupported
from amanda.drivers.tensorflow.view import attach, coverage, links, op_types

_SHARED = "_amanda_is_shared"  # the attribute of a concrete function that also stands for a trace of tools
_VECTORIZED = "/pfor/"  # operators of vectorized loops may belong to others, which are in no graph that runs


def trace_of(function_type: Any, options: Any) -> Any:
    """The trace without tools of this function and type, if it may stand for that of the tools in force. None if there
    is none."""
    if options.function_cache is None or not port.no_tape_records():
        return None
    vanilla = port.make_function_context.original(options.scope_type)
    found = port.cached_function(options.function_cache, function_type, vanilla)
    return None if found is None or unsupported.is_distributed(found.graph) else found


def share(function: Any) -> bool:
    """Has such a trace stand for that of the tools in force, if no tool asks for an operator in it. False if one does."""
    if coverage.is_open() or is_asked_for(function.graph, attach.FUNCTION, set()):
        return False
    note_shared(function)
    return True


def note_shared(function: Any) -> None:
    """Notes that a trace, or a copy of it, stands for that of tools."""
    setattr(function, _SHARED, True)


def is_outdated(function: Any) -> bool:
    """True if this trace, found for tools, is a shared one and a tape records now."""
    return getattr(function, _SHARED, False) and not port.no_tape_records()


def is_asked_for(graph: Any, backend: _core.GraphBackend, seen: set[Any]) -> bool:
    """True if a tool may ask for something in this graph, or in the functions that it runs. `seen`: the graphs
    that were looked at."""
    if graph in seen:
        return False
    seen.add(graph)
    known: dict[str, Any] = {}  # by type
    for op in graph.get_operations():
        if is_vectorized(op):
            return True
        if op.type in op_types.CALLS:
            for name in port.function_names(op):
                called = port.find_function(graph, name)
                body = None if called is None else port.graph_of(called)
                if body is None or is_asked_for(body, backend, seen):
                    return True
        elif op.type not in known:
            known[op.type] = op
        forward = port.original_op(op)
        if forward is not None:
            known.setdefault(forward.type, forward)
    for forward in links.forward_operators(graph):
        known.setdefault(forward.type, forward)
    return any(
        backend.wants(op_types.intern(backend, op))
        for type, op in known.items()
        if type not in op_types.PLUMBING and type not in op_types.CALLS
    )


def is_vectorized(op: Any) -> bool:
    """True if it may be an operator of a vectorized loop."""
    return _VECTORIZED in op.name
