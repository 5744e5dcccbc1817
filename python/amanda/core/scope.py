"""Scope: where tools apply."""

from __future__ import annotations

import functools
import inspect
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import CodeType
from typing import TYPE_CHECKING, Any, Literal, Never, NoReturn, ParamSpec, TypeVar

from amanda import _core
from amanda.core import error_notes, fork, keywords, unmatched, write_check
from amanda.core.compiled_policy import Compiled, CompiledPolicy, strongest
from amanda.core.coverage.report import CoverageReport, report_of
from amanda.core.evidence import Evidence
from amanda.core.near_names import did_you_mean, shown
from amanda.core.scope_use import ScopeUse
from amanda.core.step_tool import StepTool
from amanda.core.tool import Tool, _meant, public_names
from amanda.driver import protocol, registry
from amanda.driver.identity import roots
from amanda.reports import notebook

if TYPE_CHECKING:
    from amanda.reports.scope_description import ScopeDescription

P = ParamSpec("P")
R = TypeVar("R")


class Scope:
    """An instrumentation scope: a context manager and a decorator. Created by `apply`.

    It covers the thread that enters it, while it is entered. You can enter it any number of times. Analysis results
    belong to the scope object: entering it again reuses them; a new `apply` starts without any.
    """

    def __init__(
        self,
        tools: tuple[Tool, ...],
        on_error: Literal["raise", "disable"],
        options: dict[str, str],
        coverage: bool,
        check_writes: bool = False,
    ) -> None:
        self._tools = tools
        self._write_check = write_check.made() if check_writes else None
        self.options = options  # drivers' options, by name
        self._entered_by: tuple[int, CodeType] | None = None  # a frame, or None for the one that calls __enter__
        check = self._write_check
        run = tools if check is None else (check.first, *tools, check.last)
        self._core = _core.Scope([tool._core for tool in run], run, on_error == "disable")
        own = self._core.tools() if check is None else self._core.tools()[1:-1]
        self._counters = registry.make_coverage_counters(own) if coverage else []
        self._every_tool = list(dict.fromkeys(with_dependencies(run)))
        self._compiled = CompiledPolicy(options["compiled"], with_dependencies(tools))
        for tool in self._every_tool:
            tool._unseen_log.note_coverage(self._counters)
        self._use = ScopeUse(tools)
        self._end = weakref.finalize(self, self._use.warn)
        self._tell_unmatched: unmatched.Tell = unmatched.warn

    def __repr__(self) -> str:
        """Its tools, where it is entered now, and what its cache of analysis results did."""
        if not hasattr(self, "_core"):
            return "<amanda.Scope: not made>"
        tools = ", ".join(tool._core.name for tool in self._tools) or "no tools"
        cache = self._core.cache_info()
        known = f"known operators: {cache.currsize}, analyses: {cache.misses}, cache hits: {cache.hits}"
        return f"<amanda.Scope of {tools}; {self._entered_text()}; {known}>"

    def _repr_html_(self) -> str:
        """For notebooks: the results of its tools."""
        shown = [
            tool._repr_html_() if hasattr(tool, "_repr_html_") else notebook.text(repr(tool)) for tool in self._tools
        ]
        return notebook.together([notebook.remark(repr(self)), *shown])

    def _entered_text(self) -> str:
        here = sum(entry.scope is self for entry in _here.entries)
        elsewhere = list(_open.values()).count(self) - here
        texts = [f"entered {_times(here)}on this thread"] if here else []
        texts += [f"entered {_times(elsewhere)}on other threads"] if elsewhere > 0 else []
        return ", ".join(texts) or "not entered"

    if not TYPE_CHECKING:  # or checkers would take every name for an attribute

        def __getattr__(self, name: str) -> Any:
            """The attribute of its tool, where there is one tool: ``with amanda.apply(Profile()) as p: p.table()``."""
            if name.startswith("_") or hasattr(type(self), name):
                return object.__getattribute__(self, name)  # raises what it raised
            tools = self._tools
            if len(tools) == 1 and (hasattr(type(tools[0]), name) or hasattr(tools[0], name)):
                return getattr(tools[0], name)
            raise AttributeError(f"[scope] {self._without(name)}", name=name, obj=self)

    def _without(self, name: str) -> str:
        """The reason why there is no such attribute, and the line to write."""
        have = [tool for tool in self._tools if hasattr(tool, name)]
        if have:
            kind = type(have[0]).__name__
            return (
                f"this scope has {len(self._tools)} tools, and {name!r} is of {' and '.join(one.name for one in have)}; "
                f"give the tool a name: tool = {kind}(...); with amanda.apply(tool, ...): ...; tool.{name}"
            )
        tools = f" and its tool {self._tools[0].name}" if len(self._tools) == 1 else ""
        known = public_names(self) + [one for tool in self._tools for one in public_names(tool)]
        verb = "have" if tools else "has"
        return f"a scope{tools} {verb} no attribute {name!r}{did_you_mean(name, known)}"

    def __enter__(self) -> Scope:
        self._use.is_entered = True
        entry = _Entry(self)
        try:
            entry.open()
        except BaseException as error:
            entry.close(error)
            raise
        return self

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        entry = next((entry for entry in reversed(_here.entries) if entry.scope is self), None)
        if entry is None:
            raise _core.Error("[scope] this scope was not entered on this thread; leave it where it was entered")
        failure = entry.close(error)
        if failure:
            raise failure
        if error is None:
            self._tell_unmatched(entry.unmatched, self._counts, lambda: self._other_remarks(entry))
        else:
            self._use.has_failed = True
            error_notes.add(error, self._core)

    def _counts(self) -> tuple[list[tuple[str, int]], str]:
        """The operators that ran, as far as something knows them: names and numbers, most first, and what these are."""
        if not self._counters:
            return self._core.analysed_types(), "operators of other types that the scope's tools saw, by places"
        rows = [row for row in self.coverage().rows if row.phase == "forward"]
        calls = [(row.operator, sum(row.skipped.get(why, 0) for why in _COULD_BE_SEEN) + row.seen) for row in rows]
        calls.sort(key=lambda call: -call[1])
        return [call for call in calls if call[1]], "what ran, by calls"

    def _other_remarks(self, entry: _Entry) -> list[str]:
        return [unmatched.elsewhere(entry.elsewhere)] if entry.elsewhere else self._partly_unmatched()

    def _partly_unmatched(self) -> list[str]:
        """Texts about single names in the filters of its tools, once these are in no other scope of this thread."""
        waiting = [tool for tool in self._every_tool if any(one.waiting for one in tool._followed())]
        if not waiting:
            return []
        elsewhere = {tool for entry in _here.entries for tool in entry.scope._every_tool}
        stopped = self._core.stopped_tools()
        return [
            text
            for tool in waiting
            if tool not in elsewhere and tool.name not in stopped
            for text in unmatched.partly(tool.name, tool._followed(), self._ran)
        ]

    def _ran(self) -> list[str]:
        return [name for name, _ in self._core.analysed_types()]

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Decorates a function so that its body runs in the scope."""
        if not callable(function) or isinstance(function, type):
            raise TypeError(f"[scope] a scope decorates functions, got {function!r}")
        suspends = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)
        if any(suspends_here(function) for suspends_here in suspends):
            raise TypeError(
                f"[scope] {function.__qualname__} suspends itself, and other code would run in its scope; "
                "use `with scope:` inside it, around code that does not suspend"
            )

        self._use.is_decorator = True

        @functools.wraps(function)
        def in_scope(*args: P.args, **kwargs: P.kwargs) -> R:
            with self:
                return function(*args, **kwargs)

        return in_scope

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError(
            "[scope] a scope cannot be copied or pickled: it belongs to its process; call amanda.apply where it is used"
        )

    def cache_info(self) -> _core.CacheInfo:
        """Returns hits, misses and size of the cache of analysis results."""
        return self._core.cache_info()

    def cache_clear(self, op_id: int | None = None) -> None:
        """Drops the analysis results and keys of one operator, or of all operators, which are then analyzed again.

        Raises:
            TypeError: `op_id` is not an operator's id.
        """
        if not isinstance(op_id, int | None) or isinstance(op_id, bool) or not 0 <= (op_id or 0) < 1 << 64:
            raise TypeError(f"[scope] cache_clear takes an operator's id, such as context.op_id, got {op_id!r}")
        self._core.cache_clear(op_id or 0)

    def describe(self) -> ScopeDescription:
        """Lists what the tools have scheduled so far, operator by operator: where it is, and what runs there, in order::

            print(scope.describe())

        It works while the scope is entered and after it was left, on any thread. Operators on which nothing is scheduled
        are not listed, nor are routines that were removed.
        """
        from amanda.reports.scope_description import description_of  # few programs ask for it

        actions, check = self._core.describe(), self._write_check
        if check is not None:
            actions = [action for action in actions if action.tool != check.last.name]
        return description_of(actions, self._core.stopped_tools())

    def coverage(self) -> CoverageReport:
        """Reports the calls that the framework dispatched while this scope was entered, and which of them tools saw.

        The counts include every time that the scope was entered, up to now.

        Raises:
            amanda.Error: the scope was made without ``coverage=True``.
        """
        if not self._counters:
            raise _core.Error(
                "[scope] this scope does not count what its tools see; make it with amanda.apply(..., coverage=True)"
            )
        return report_of(row for counter in self._counters for row in counter.rows())

    def evidence(self) -> list[Evidence]:
        """The operators that each of its tools has looked at, and those that ran and were not looked at. See
        `Tool.evidence`. With ``check_writes=True`` the last one is that of the check, "amanda"."""
        check = self._write_check
        return [tool.evidence() for tool in self._tools] + ([] if check is None else [check.evidence()])

    def hidden_writes(self) -> Sequence[Any]:
        """The writes to tensors that changed no version, one for each place, in the order in which they were found.
        ``str()`` of one says where it was met, and what has changed.

        Raises:
            amanda.Error: the scope was made without ``check_writes=True``.
        """
        if self._write_check is None:
            raise _core.Error(
                "[scope] this scope does not check writes; make it with amanda.apply(..., check_writes=True)"
            )
        return self._write_check.findings()


_COULD_BE_SEEN = ("unasked", "opaque")  # reasons for which calls of the program itself were skipped


def _times(count: int) -> str:
    return f"{count} times " if count > 1 else ""


class _Entry:
    """One entry of a scope. Leaving undoes the completed steps of entering, in reverse order."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.number = 0
        # Once it is left, it warns of these.
        self.unmatched: list[_core.Unmatched] = []
        self.elsewhere = ""  # the operator that another thread ran, while this one ran none
        self._steps_back: list[Callable[[BaseException | None], object]] = []

    def open(self) -> None:
        scope, back, here = self.scope, self._steps_back, _here.entries
        self.number = number = scope._core.enter()
        back.append(lambda error: self._leave_core(number, error))
        here.append(self)
        back.append(lambda error: here.remove(self))
        back.append(lambda error: _left(number))
        _opened(number, scope)
        forget_root = roots.enter(number, scope._entered_by)
        back.append(lambda error: forget_root())
        for counter in scope._counters:
            back.append(functools.partial(_close, counter))
            counter.open()

    def _leave_core(self, number: int, error: BaseException | None) -> None:
        self.unmatched, self.elsewhere = self.scope._core.leave(number, error)

    def close(self, error: BaseException | None) -> BaseException | None:
        """Undoes every step, even if one raises. Returns the first exception."""
        first: BaseException | None = None
        while self._steps_back:
            try:
                self._steps_back.pop()(error)
            except BaseException as failure:
                first = first or failure
        return first

    def thread_has_ended(self, on_its_thread: bool) -> None:
        """Called when a thread ends with open scopes. On another thread, the ended thread's state no longer exists."""
        if on_its_thread:
            failure = self.close(None)
            if failure:
                raise failure
        else:
            _left(self.number)


def _close(counter: protocol.CoverageCounter, error: BaseException | None) -> None:
    counter.close()


_open: dict[int, Scope] = {}  # open scopes of all threads, by entry number
_lock = fork.rlock()  # reentrant: garbage collection may leave a scope while another is entered


def _opened(entry: int, scope: Scope) -> None:
    with _lock:
        first = not _open
        _open[entry] = scope
        if first:
            registry.enter()
            if (refusal := registry.refusal()) is not None:
                unmatched.warn_here(f"[scope] tools see nothing here: {refusal}", UserWarning)


def _left(entry: int) -> None:
    with _lock:
        if _open.pop(entry, None) is not None and not _open:
            registry.leave()


def _forget_in_child() -> None:
    """A forked child has no open scopes."""
    if _open:
        _open.clear()
        registry.leave()


os.register_at_fork(after_in_child=_forget_in_child)


class _Entries(list[_Entry]):
    """The entries of one thread, in the order in which they were entered."""

    compiled: str | None = None  # what is in force of what their scopes ask for

    def append(self, entry: _Entry) -> None:
        super().append(entry)
        self._update()

    def remove(self, entry: _Entry) -> None:
        super().remove(entry)
        self._update()

    def _update(self) -> None:
        self.compiled = strongest(entry.scope._compiled.asks_for for entry in self)

    def run_eagerly(self, why: str) -> None:
        for entry in self:
            if entry.scope._compiled.asks_for in ("auto", "yields"):
                entry.scope._compiled.run_eagerly(why)
        self._update()


class _ThreadsEnd:
    """Deleted when its thread ends; leaves the scopes that are open on that thread."""

    def __init__(self, entries: list[_Entry]) -> None:
        self._entries, self._thread = entries, threading.get_ident()

    def __del__(self) -> None:
        if sys is None or sys.is_finalizing():  # scopes may be open at the end of the interpreter
            return
        on_its_thread = self._thread == threading.get_ident()
        for entry in reversed(list(self._entries)):
            entry.thread_has_ended(on_its_thread)


class _Here(threading.local):
    def __init__(self) -> None:
        self.entries = _Entries()
        self.end = _ThreadsEnd(self.entries)


_here = _Here()


def note_unseen(reason: str, name: str) -> None:
    """For drivers: something runs in the scopes of this thread that is not shown to their tools.

    Arguments: as `amanda.core.evidence.UnseenLog.note`.
    """
    for tool in {tool for entry in _here.entries for tool in entry.scope._every_tool}:
        tool._unseen_log.note(reason, name)


def compiled_here() -> str | None:
    """For drivers: one of `compiled_policy.STRONGEST`, which is in force for the scopes that this thread has entered; None
    if there is none."""
    return _here.entries.compiled


def why_eager() -> str:
    """For drivers: why compiled functions run eagerly in the scopes of this thread; empty if the program asked for it."""
    return next((why for entry in _here.entries if (why := entry.scope._compiled.why_eager)), "")


def run_eagerly(why: str) -> None:
    """For drivers: a tool turned out not to work on compiled code. From now on, compiled functions run eagerly in those
    scopes of this thread that left it open."""
    _here.entries.run_eagerly(why)


def apply(
    *tools: Tool,
    on_error: Literal["raise", "disable"] = "raise",
    compiled: Compiled = "auto",
    coverage: bool = False,
    check_writes: bool = False,
    **unknown: Never,
) -> Scope:
    """Creates a scope in which `tools`, and the tools they depend on, apply::

        with amanda.apply(tool):
            model(x)

    If there is one tool, the scope has its methods, too::

        with amanda.apply(Profile()) as profile:
            model(x)
        print(profile.table())

    Arguments:
        tools: run in this order, except that dependencies run first.
        on_error: what happens when a routine fails. ``"raise"``: its exception is raised in the program. ``"disable"``:
            the tool and its dependents stop for the rest of the scope, with one log line, and the program continues.
        compiled: how functions compiled with `torch.compile` run in the scope. ``"graph"``: compiled, with taps where
            tools ask for their operators. ``"eager"``: uncompiled, so that tools see their operators, with the results of
            the eager run. ``"opaque"``: compiled; tools do not see their operators. ``"auto"``: as with ``"graph"`` if
            all tools can work on compiled code, else as with ``"eager"``; a log line then names the tool and the reason.
            Functions of TensorFlow are always seen.
        coverage: counts the calls that the framework dispatches, for `Scope.coverage`. It costs about a microsecond per
            call, inner calls included. An operator of a TensorFlow graph counts once for each graph that is instrumented.
        check_writes: finds writes to tensors that change no version, and that autograd therefore does not know of:
            through ``.data``, NumPy, pointers, or kernels whose schema does not declare them. Each place is one line in
            the log; `Scope.hidden_writes` lists them. It reads the memory of all operands, which is slow. Operators
            of TensorFlow are not checked.

    Raises:
        TypeError: one of them is not a tool; there is another keyword.
        ValueError: an unknown `on_error`, `compiled`, `coverage` or `check_writes`; a tool that works step by step
            (`StepTool`); two tools of which a scope can have one.
        amanda.Error: the dependencies have a cycle; `coverage` without a framework.
    """
    for name in unknown:
        keywords.refuse("[scope] apply", name, apply)
    options = checked_options("apply", tools, on_error, compiled, coverage, check_writes)
    for tool in tools:
        if isinstance(tool, StepTool):
            raise ValueError(
                f"[scope] '{tool.name}' works step by step: use `with amanda.scheduled(tool) as run:`, and call run.step() "
                "after each step"
            )
    return Scope(tools, on_error, options, coverage, check_writes)


def with_dependencies(tools: Iterable[Tool]) -> Iterator[Tool]:
    """Dependencies first. A tool may come several times."""
    for tool in tools:
        yield from with_dependencies(tool._dependencies)
        yield tool


def checked_options(
    function: str,
    tools: tuple[Tool, ...],
    on_error: object,
    compiled: str,
    coverage: object,
    check_writes: object,
) -> dict[str, str]:
    """For `apply` and `scheduled`: the drivers' options by name. Raises what `apply` says."""
    for tool in tools:
        if not isinstance(tool, Tool):
            raise TypeError(f"[scope] {function} takes tools, got {shown(tool)}{_meant(tool, function)}")
    _check_alone(tools)
    if on_error not in ("raise", "disable"):
        raise ValueError(f'[scope] on_error is "raise" or "disable", got {on_error!r}')
    options = registry.checked({"compiled": compiled})
    for name, flag in (("coverage", coverage), ("check_writes", check_writes)):
        if not isinstance(flag, bool):
            raise ValueError(f"[scope] {name} is True or False, got {flag!r}")
    if not tools and not coverage and not check_writes:
        unmatched.warn_here(
            f"[scope] {function}() without tools instruments nothing; give it tools: with amanda.{function}(tool): ...",
            UserWarning,
        )
    return options


def _check_alone(tools: tuple[Tool, ...]) -> None:
    known: dict[str, Tool] = {}
    for tool in filter(lambda tool: tool._alone, tools):
        if known.setdefault(tool._alone, tool) is not tool:
            kind = type(tool).__name__
            raise ValueError(f"[scope] got two tools of type {kind}, and a scope can have one: {tool._alone}")
