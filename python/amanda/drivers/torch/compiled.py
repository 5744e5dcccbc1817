"""Functions compiled with `torch.compile` run eagerly in scopes, or compiled and instrumented, or compiled and unseen.

torch.compiler.set_stance("force_eager") would affect other threads, and torch.cond, which can only run compiled.

Importing `torch._dynamo` takes seconds, so nothing here imports it: it is patched when the program does.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any

import torch

from amanda import _torch
from amanda.core import fork, scope
from amanda.driver.identity import cells
from amanda.drivers.torch import port, recomputation


class _WhenImported(importlib.abc.MetaPathFinder):
    """Calls `then` right after torch._dynamo is imported."""

    def __init__(self, then: Callable[[], None]) -> None:
        self._then = then

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != port.DYNAMO:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            execute = loader.exec_module

            def execute_then(module: ModuleType) -> None:
                execute(module)
                self._then()

            loader.exec_module = execute_then
        return spec


class _Hooks:
    """The hooks that a compiled function calls around itself: ours first, then its own."""

    def __init__(self, own: list[Any]) -> None:
        self._own = own

    def append(self, hook: Any) -> None:
        self._own.append(hook)

    def __iter__(self) -> Iterator[Any]:
        return iter((_enter_compiled, *self._own))


def _hooks_of(context: Any) -> Any:
    own = context.__dict__[port.ENTER_EXIT_HOOKS]
    ours = scope.compiled_here() == "opaque" or recomputation.may_recompute()
    return _Hooks(own) if ours else own


_hooks = property(_hooks_of, lambda context, hooks: context.__dict__.update({port.ENTER_EXIT_HOOKS: hooks}))
_open = False
_finder: _WhenImported | None = None
_lock = fork.rlock()
_run_eagerly: dict[str, None] = {}  # the functions that a warning was about, in order
_said: set[str] = set()  # the policies that a log line has named
_callback_of_torch: Any = None
# Replaces torch's own _callback_from_stance under "graph". It gets the function's callback and torch's own function. It
# returns None if the function is to run eagerly.
_graphs: Callable[[Any, Callable[[Any], Any]], Any]
_why_no_graphs: Callable[[], str]  # the reason why `_graphs` refuses all functions; empty if it does not


def instrument_graphs_with(
    callback_for: Callable[[Any, Callable[[Any], Any]], Any], refusal: Callable[[], str]
) -> None:
    """Registers what chooses the compiler's callback under `compiled="graph"`. `refusal()` is the reason why it can't;
    empty if it can."""
    global _graphs, _why_no_graphs
    _graphs, _why_no_graphs = callback_for, refusal


def _policy() -> str | None:
    """The policy for the compiled function that is about to run on this thread; None if it is no scope's concern."""
    asked = scope.compiled_here() if _torch.has_scopes() else None
    if not (asked or recomputation.is_pending()) or _called_by_torch():
        return None
    if asked == "auto" and (why := _why_no_graphs()):
        scope.run_eagerly(why)
        asked = "eager"
    return recomputation.policy_for(_POLICIES.get(asked, asked) if asked else None)


_POLICIES = {"auto": "graph", "yields": "eager"}


def _called_by_torch() -> bool:
    """torch.cond and similar operators must compile their branches to run: the program did not ask for that."""
    frame = _frame_of_compiled(sys._getframe(2))
    caller = frame.f_back if frame else None
    name = caller.f_globals.get("__name__", "") if caller else ""
    return name.startswith(port.COMPILES_TO_RUN)


def _frame_of_compiled(frame: Any) -> Any:
    """The frame of the innermost wrapper of a compiled function, from this one outwards. None if a block is
    compiled."""
    while frame and frame.f_code.co_name != port.COMPILED_FUNCTION:
        frame = frame.f_back
    return frame


def functions_run_eagerly() -> list[str]:
    """The compiled functions that scopes of this process have run eagerly, as "module.name (file:line)"."""
    return list(_run_eagerly)


def runs_eagerly(why: str) -> None:
    """Notes that the compiled function which this thread calls runs eagerly, in the evidence of its scopes, and warns
    once for each function. `why`: empty if the program asked for it."""
    function = _name_of(_frame_of_compiled(sys._getframe()))
    scope.note_unseen("eager", function)
    port.satisfy_fullgraph()
    with _lock:
        if function in _run_eagerly:
            return
        _run_eagerly[function] = None
    logging.getLogger("amanda").warning(
        "[scope] %s is compiled with torch.compile, and runs eagerly in this scope%s. Its results may differ in the last "
        "bits from those of the compiled function, and its random numbers are others. %s (said once for each function)",
        function,
        f": {why}" if why else "",
        'With compiled="opaque" it runs as it is, unseen'
        if why
        else 'Apply the tools with compiled="graph" to instrument compiled functions, or with compiled="opaque" to run '
        "them as they are, unseen",
    )


def running_function() -> str:
    """The compiled function that this thread runs, as "module.name (file:line)"."""
    return _name_of(_frame_of_compiled(sys._getframe()))


_IN_FORCE = {
    "graph": "they run compiled, with taps where tools ask for their operators",
    "opaque": 'they run as they are, and tools see none of their operators (compiled="opaque"); compiled="graph" '
    "instruments them",
}


def _say(policy: str) -> None:
    """Says once what is in force, when a compiled function is met."""
    if policy in _said:
        return
    with _lock:
        if policy in _said:
            return
        _said.add(policy)
    logging.getLogger("amanda").info("[scope] functions compiled with torch.compile: %s", _IN_FORCE[policy])


def _name_of(frame: Any) -> str:
    """The compiled function as "module.name (file:line)", or the known parts of it."""
    function = frame.f_locals.get(port.FUNCTION) if frame else None
    if function is None:
        return "a block"
    module = getattr(function, "__self__", None)
    if isinstance(module, torch.nn.Module):  # its __call__ is compiled
        function = type(module).forward
    code = getattr(inspect.unwrap(function), "__code__", None)
    named = function if hasattr(function, "__qualname__") else type(function)
    name = f"{named.__module__}.{named.__qualname__}"
    line = f"{code.co_filename}:{code.co_firstlineno}" if code else ""
    return f"{name} ({cells.line_in_cell(line)})" if line else name


def _enter_compiled() -> Callable[[], None]:
    policy = None if port.runs_eagerly() else _policy()
    if policy == "graph" and (first := recomputation.repeated()):
        role = _torch.exchange_key_role(first.key_role)
        return functools.partial(_put_back, role)
    if policy != "opaque":
        return lambda: None
    _say("opaque")
    scope.note_unseen("opaque", _name_of(_frame_of_compiled(sys._getframe())))
    _torch.enter_compiled()
    return _torch.leave_compiled


def _put_back(role: int) -> None:
    _torch.exchange_key_role(role)


def _callback(callback: Any) -> Any:
    """Replaces `_callback_from_stance`; returning None runs the function eagerly."""
    policy = None if callback in (None, False) else _policy()
    if policy == "graph":
        _say(policy)
        scope.note_unseen("taps", _name_of(_frame_of_compiled(sys._getframe())))
        return _graphs(callback, _callback_of_torch)
    if policy in (None, "opaque"):
        return _callback_of_torch(callback)
    runs_eagerly(scope.why_eager())
    return None


def _update() -> None:
    """Patches torch._dynamo while scopes are open, or a region that ran in one can be recomputed, and unpatches it;
    called again after torch._dynamo is imported."""
    global _finder, _callback_of_torch
    with _lock:
        frames = port.eval_frame()
        if frames is None:
            if _open and _finder is None:
                _finder = _WhenImported(_update)
                sys.meta_path.insert(0, _finder)
            return
        cls = frames._TorchDynamoContext
        if _open or recomputation.is_pending():
            setattr(cls, port.ENTER_EXIT_HOOKS, _hooks)
            if frames._callback_from_stance is not _callback:
                _callback_of_torch, frames._callback_from_stance = frames._callback_from_stance, _callback
            return
        if cls.__dict__.get(port.ENTER_EXIT_HOOKS) is _hooks:
            delattr(cls, port.ENTER_EXIT_HOOKS)
        if frames._callback_from_stance is _callback:
            frames._callback_from_stance = _callback_of_torch


recomputation.when_changed(_update)


def leave_untraced(*functions: Any) -> None:
    """Prevents the compiler from tracing these functions: they are graph breaks."""
    for function in functions:
        port.leave_untraced(function)


def patch() -> None:
    global _open
    _open = True
    _update()


def unpatch() -> None:
    global _open
    _open = False
    _update()
