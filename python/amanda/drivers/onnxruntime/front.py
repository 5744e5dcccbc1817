"""The front: what the `run` of a session runs while scopes are open."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnxruntime

from amanda.core import fork
from amanda.drivers.onnxruntime import bindings, op_types, port, program
from amanda.drivers.onnxruntime.chain import Chain
from amanda.drivers.onnxruntime.op_types import BACKEND
from amanda.drivers.onnxruntime.program import Program, Unreadable
from amanda.drivers.onnxruntime.site import Site
from amanda.drivers.onnxruntime.unsupported import warn

_PROGRAM = "_amanda_program"  # the attribute of a session with what it runs
_STAMP = "_amanda_stamp"
_lock = fork.rlock()  # a graph is read by one thread


def watch() -> None:
    """From now on, sessions remember which file they were made of, which may change before they run in a scope, and
    bindings what is bound."""
    bindings.watch()
    make = port.InferenceSession.__init__

    @functools.wraps(make)
    def make_and_remember(self: Any, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        setattr(self, _STAMP, program.stamp(port.source_of(self)))

    port.InferenceSession.__init__ = make_and_remember


def patch() -> None:
    port.run.replace(_run)
    port.run_async.replace(_run_async)
    port.run_with_ort_values.replace(_run_with_ort_values)
    port.run_with_iobinding.replace(_run_with_iobinding)
    port.run_with_ortvaluevector.replace(_run_with_ortvaluevector)


def unpatch() -> None:
    for method in (
        port.run,
        port.run_async,
        port.run_with_ort_values,
        port.run_with_iobinding,
        port.run_with_ortvaluevector,
    ):
        method.restore()


@functools.wraps(port.run.original)
def _run(self: Any, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], run_options: Any = None) -> Any:
    chain = _chain(self, output_names)
    if chain is not None and chain.accepts(input_feed):
        try:
            return chain.run(input_feed, run_options)
        except Unreadable as why:
            warn(f"a session runs without tools: {why}")
    return port.run.original(self, output_names, input_feed, run_options)


@functools.wraps(port.run_async.original)
def _run_async(
    self: Any,
    output_names: Sequence[str] | None,
    input_feed: Mapping[str, Any],
    callback: Callable[[Any, Any, str], None],
    user_data: Any,
    run_options: Any = None,
) -> Any:
    chain = _chain(self, output_names)
    if chain is None or not chain.accepts(input_feed):
        return port.run_async.original(self, output_names, input_feed, callback, user_data, run_options)

    def run() -> None:
        try:
            results, error = chain.run(input_feed, run_options), ""
        except Exception as failed:  # of the run, or of a routine
            results, error = [], f"{type(failed).__name__}: {failed}"
        callback(results, user_data, error)

    threading.Thread(target=run, name="amanda-onnxruntime", daemon=True).start()
    return None


@functools.wraps(port.run_with_ort_values.original)
def _run_with_ort_values(
    self: Any, output_names: Sequence[str] | None, input_dict_ort_values: Mapping[str, Any], run_options: Any = None
) -> Any:
    chain = _chain(self, output_names)
    given = input_dict_ort_values
    if chain is not None and not all(each.is_tensor() and each.device_name() == "cpu" for each in given.values()):
        warn("run_with_ort_values() runs without tools where a value is no tensor on the CPU; use run()")
        chain = None
    if chain is None or not chain.accepts(given):
        return port.run_with_ort_values.original(self, output_names, given, run_options)
    results = chain.run({name: each.numpy() for name, each in given.items()}, run_options)
    return [onnxruntime.OrtValue.ortvalue_from_numpy(each) for each in results]


@functools.wraps(port.run_with_iobinding.original)
def _run_with_iobinding(self: Any, iobinding: Any, run_options: Any = None) -> Any:
    """Runs twice: the session decides where its results are, and those of the chain are written over them."""
    names, results = bindings.outputs_of(iobinding), None
    chain = _chain(self, names) if names else None
    try:
        if chain is not None and chain.accepts(given := bindings.inputs_of(iobinding)):
            results = chain.run(given, run_options)  # before outputs are written, which may be in the memory of inputs
    except Unreadable as why:
        warn(f"run_with_iobinding() runs without tools: {why}; use run()")
    returned = port.run_with_iobinding.original(self, iobinding, run_options)
    if results is not None:
        why_not = bindings.write(iobinding, dict(zip(names, results, strict=True)))
        if why_not:
            warn(f"results of run_with_iobinding() are those without tools: {why_not}; use run()")
    return returned


@functools.wraps(port.run_with_ortvaluevector.original)
def _run_with_ortvaluevector(self: Any, *args: Any, **kwargs: Any) -> Any:
    if BACKEND.toolset() is not None:
        known = _program_of(self)
        if known is None or any(map(BACKEND.wants, op_types.types_in(known.model))):
            warn("run_with_ortvaluevector() runs without tools; use run() or run_with_iobinding()")
    return port.run_with_ortvaluevector.original(self, *args, **kwargs)


def _chain(session: Any, output_names: Sequence[str] | None) -> Chain | None:
    """The chain that runs in place of the session. None if the session runs itself."""
    toolset = BACKEND.toolset()
    if toolset is None:
        return None
    known = _program_of(session)
    if known is None:
        return None
    names = tuple(output_names) if output_names else known.outputs
    if not known.outputs_set.issuperset(names):
        return None  # it says so
    signature = "" if names == known.outputs else repr(names)
    chain: Chain | None = known.cache.get(toolset, signature, BACKEND, Site(known, names)).lowered
    return chain


def _program_of(session: Any) -> Program | None:
    known: tuple[Any, Program | str] | None = session.__dict__.get(_PROGRAM)
    if known is None or known[0] is not port.inner_of(session):  # its providers were changed: it is another one
        with _lock:
            known = port.inner_of(session), _read(session)
            session.__dict__[_PROGRAM] = known
    found = known[1]
    if isinstance(found, str):
        warn(f"a session runs without tools: {found}")
        return None
    return found


def _read(session: Any) -> Program | str:
    source = port.source_of(session)
    if session.__dict__.get(_STAMP, program.stamp(source)) != program.stamp(source):
        return f"{source!r} has changed since the session was made; make it again"
    try:
        return Program(session)
    except Unreadable as why:
        return str(why)
    except Exception as error:  # no reason to end a program
        return f"its graph can't be read ({type(error).__name__}: {program.first_line(error)})"
