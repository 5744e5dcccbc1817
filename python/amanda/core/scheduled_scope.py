"""ScheduledScope: a scope that is open in the steps that a schedule names, and closed in all others."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any, Literal, Never

from amanda import _core
from amanda.core import keywords, switches, unmatched
from amanda.core.compiled_policy import Compiled
from amanda.core.schedule import Phase, Schedule, _checked
from amanda.core.scope import Scope, checked_options
from amanda.core.step_tool import StepTool
from amanda.core.tool import Tool
from amanda.driver import optimizers
from amanda.driver.identity import roots


class ScheduledScope(Scope):
    """A scope that is open only in some steps of a loop. Created by `scheduled`.

    While the program is inside the `with` statement, `step()` closes and opens it. Operators have the ids that they would
    have if the `with` statement had opened it. You can enter it again: steps are counted on.
    """

    def __init__(
        self,
        tools: tuple[Tool, ...],
        on_error: Literal["raise", "disable"],
        options: dict[str, str],
        coverage: bool,
        schedule: Schedule,
        steps: Any,
        first_step: int,
        check_writes: bool = False,
    ) -> None:
        self.schedule = schedule
        self._register = _registering(steps)
        self._number = first_step
        self._first = first_step
        self._thread: int | None = None  # that has entered it
        self._is_open = self._began = self._has_been_active = False
        self._handle: Any = None
        self._disables = on_error == "disable"
        super().__init__(tools, on_error, options, coverage, check_writes)
        self._step_tools = [tool for tool in self._every_tool if isinstance(tool, StepTool)]
        self._resets: list[Callable[[], object]] = [tool.reset for tool in self._every_tool if hasattr(tool, "reset")]

    @property
    def step_number(self) -> int:
        """The step that runs, or runs next: 0 at first, or `first_step`."""
        return self._number

    @property
    def phase(self) -> Phase:
        """The phase of this step: "active", "warmup", or "wait", in which the scope is closed."""
        phase = self.schedule(self._number)
        return "wait" if phase == "warmup" and self._has_been_active else phase

    def __enter__(self) -> ScheduledScope:
        if self._thread is not None:
            raise _core.Error("[schedule] this scope is entered already; leave it first, or make another one")
        self._use.is_entered = True
        self._thread, self._entered_by = threading.get_ident(), roots.caller()
        try:
            self._begin()
            if self._register is not None:
                self._handle = self._register(self._after_optimizer)
        except BaseException as error:
            self._leave(error)
            raise
        return self

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        self._check_thread("leave it")
        self._leave(error)
        if error is None and self._number == self._first and not _is_always_active(self.schedule):
            unmatched.warn_here(self._never_stepped(), UserWarning)

    def _never_stepped(self) -> str:
        phase = self.schedule(self._number)
        saw = "so its tools saw all that ran" if phase == "active" else "so its tools have no results"
        cause = "run.step() was not called; call it after each step, or give steps=optimizer"
        if self._register is not None:
            cause = "steps= counted none; give the optimizer whose step() the program calls, or call run.step()"
        return f"[schedule] no step ended: the scope stayed in step {self._number}, {phase!r}, {saw}: {cause}"

    def step(self) -> None:
        """Ends a step, and begins the next one.

        Raises:
            amanda.Error: the scope is not entered, or on another thread.
            Exception: what a `StepTool` raises, such as `OSError` where its files cannot be written.
        """
        self._check_thread("call step()")
        failure = self._tell("on_step_end", self._number) if self._began else None
        self._began = False
        if self._is_open and self.phase == "warmup" and self.schedule(self._number + 1) != "warmup":
            for reset in self._resets:
                reset()
        self._number += 1
        try:
            self._begin()
        finally:
            if failure is not None:
                raise failure

    def _begin(self) -> None:
        opens = self.phase != "wait"
        if opens and not self._is_open:
            super().__enter__()
            self._is_open = True
        elif not opens and self._is_open:
            self._close(None)
        if self.phase == "active":
            self._has_been_active = self._began = True
            failure = self._tell("on_step_begin", self._number)
            if failure is not None:
                raise failure

    def _close(self, error: BaseException | None) -> None:
        self._is_open = False
        super().__exit__(type(error) if error else None, error, None)

    def _leave(self, error: BaseException | None) -> None:
        if self._handle is not None:
            self._handle.remove()
        self._handle = self._thread = None
        self._began = False
        failure: BaseException | None = None
        try:
            if self._is_open:
                self._close(error)
        except BaseException as raised:
            failure = raised
        hook_failure = self._tell("on_schedule_end", error or failure)
        self._entered_by = None
        if failure or (hook_failure is not None and error is None):
            raise failure or hook_failure  # type: ignore[misc]

    def _tell(self, method: str, *arguments: object) -> Exception | None:
        """The first exception, if the program is to get it."""
        failure: Exception | None = None
        with switches.own_work():
            for tool in list(self._step_tools):
                try:
                    getattr(tool, method)(*arguments)
                except Exception as error:
                    if not self._disables:
                        failure = failure or error
                        continue
                    self._step_tools.remove(tool)
                    text = f"{type(error).__name__}: {error}"
                    logging.getLogger("amanda").warning(
                        "[schedule] %s: %s failed, and gets no more steps: %s", tool.name, method, text
                    )
                    tool.on_disable(error)
        return failure

    def _after_optimizer(self, *arguments: object) -> None:
        if threading.get_ident() == self._thread:
            self.step()

    def _check_thread(self, what: str) -> None:
        if self._thread is None:
            raise _core.Error("[schedule] this scope is not entered; write: with amanda.scheduled(...) as run:")
        if self._thread != threading.get_ident():
            raise _core.Error(f"[schedule] this scope was entered on another thread; {what} there")


def scheduled(
    *tools: Tool,
    schedule: Schedule | None = None,
    steps: Any = None,
    first_step: int = 0,
    on_error: Literal["raise", "disable"] = "raise",
    compiled: Compiled = "auto",
    coverage: bool = False,
    check_writes: bool = False,
    **unknown: Never,
) -> ScheduledScope:
    """Creates a scope that is open in some steps of a loop, and closed in all others, which cost nothing::

        with amanda.scheduled(tool, schedule=amanda.Schedule(every=100)) as run:
            for batch in loader:
                train(batch)
                run.step()

    Arguments:
        tools, on_error, compiled, coverage, check_writes: as for `apply`.
        schedule: the steps in which the scope is open; all steps by default.
        steps: what ends a step. By default, the program calls `step()`. If an optimizer is given, each of its
            steps ends a step. For all optimizers of the process, give ``register_optimizer_step_post_hook`` of
            ``torch.optim.optimizer``, or of ``amanda.toolkit.optimizers``, which is for TensorFlow, too. Other functions
            of this kind can be given: they register a hook that is called after each step, and return a handle with
            ``remove()``.
        first_step: the number of the first step, where training is resumed from a checkpoint.

    Raises:
        TypeError: one of the tools is not a tool; `schedule` is not a `Schedule`; `steps` registers no
            hooks; there is another keyword.
        ValueError, amanda.Error: as for `apply`.
    """
    for name in unknown:
        keywords.refuse("[scope] scheduled", name, scheduled)
    options = checked_options("scheduled", tools, on_error, compiled, coverage, check_writes)
    if not isinstance(schedule, Schedule | None):
        raise TypeError(f"[schedule] schedule= is an amanda.Schedule, got {schedule!r}")
    first = _checked("first_step", first_step)
    return ScheduledScope(tools, on_error, options, coverage, schedule or Schedule(), steps, first, check_writes)


def _is_always_active(schedule: Schedule) -> bool:
    others = (schedule.wait, schedule.warmup, schedule.skip_first, schedule.repeat)
    return not any(others) and schedule.every in (None, schedule.active)


def _registering(steps: Any) -> Callable[[Callable[..., None]], Any] | None:
    register = getattr(steps, "register_step_post_hook", steps)
    if hasattr(steps, "apply_gradients"):  # an optimizer without such hooks
        register = optimizers.post_hook_of(steps)
    if register is not None and not callable(register):
        raise TypeError(
            "[schedule] steps= is an optimizer, or a function that registers a hook, such as "
            f"register_optimizer_step_post_hook of torch.optim.optimizer; got {steps!r}"
        )
    return register  # type: ignore[no-any-return]
