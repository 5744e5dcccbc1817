"""Graphs with taps, and their runs: what their routines share, and what they raise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from amanda import _core, _tensorflow
from amanda.drivers.tensorflow import port
from amanda.drivers.tensorflow.view import graph_site

# The attribute of a graph. (A table that is keyed by graphs would keep them alive.)
_ATTRIBUTE = "_amanda_instrumented"


class Instrumented(NamedTuple):
    """The instrumented form of a function's graph, or of a body's."""

    toolset: _core.Toolset
    shown: dict[tf.Operation, graph_site.Shown]
    artifact: _core.Artifact
    copied: Any = None  # the function of which this is a copy

    @property
    def has_taps(self) -> bool:
        return self.artifact.lowered is not None


def note(graph: Any, what: Instrumented) -> None:
    setattr(graph, _ATTRIBUTE, what)


def instrumented(graph: Any) -> Instrumented | None:
    return getattr(graph, _ATTRIBUTE, None)


class FunctionWithTaps(port.AtomicFunction):  # type: ignore[misc]
    """A function of TensorFlow's runtime that has taps, or calls such functions."""

    __slots__ = ()

    @property
    def graph_debug_info(self) -> Any:
        """The lines of the program that created the operators, for TensorFlow's errors: a copy has none."""
        known = instrumented(port.graph_of(self))
        return super().graph_debug_info if known is None or known.copied is None else known.copied.graph_debug_info

    def call_flat(self, *args: Any) -> Any:
        if not port.runs_eagerly(self):
            return super().call_flat(*args)
        return run_with_taps(super().call_flat, *args)


def run_with_taps(function: Callable[..., Any], *args: Any) -> Any:
    """Calls a function that runs taps. An error of a routine is raised as itself."""
    _tensorflow.begin_run()
    try:
        return function(*args)
    except tf.errors.OpError as error:
        _tensorflow.raise_error(error.message)
        raise
    finally:
        _tensorflow.end_run()


def mark(function: Any) -> None:
    """Watches a function's runs, if it has taps."""
    if type(function) is port.AtomicFunction and runs_taps(function):
        function.__class__ = FunctionWithTaps


def runs_taps(function: Any) -> bool:
    if isinstance(function, FunctionWithTaps):
        return True
    if not isinstance(function, port.AtomicFunction):
        return False
    known = instrumented(port.graph_of(function))
    return bool(known and known.has_taps) or any(map(runs_taps, function.children))
