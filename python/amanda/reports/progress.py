"""Progress of long work: a bar while it runs, of `rich.progress` on a terminal, of HTML in a notebook.

Amanda's own part is when a bar is drawn. rich draws it at once, and on a thread of its own.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from amanda.reports import notebook_bar
from amanda.reports.rank import this_rank

FIRST = 0.5  # seconds until a bar is shown: shorter work shows none
PERIOD = 0.1  # seconds between two drawings of a bar, at least
TICK = 0.5  # seconds between those that a thread makes

_drawing = threading.Lock()  # held by what draws on the terminal: two displays would overwrite each other


@contextlib.contextmanager
def claimed_terminal() -> Iterator[bool]:
    """Yields True if the block may draw on standard error.

    The block may draw if standard error is a terminal, and no other block draws there. Other blocks are those of this
    process, of the first rank, and of the process that has started this one by `multiprocessing`.
    """
    with _claimed(_is_terminal) as claimed:
        yield claimed


@contextlib.contextmanager
def _claimed(is_shown: Callable[[], bool]) -> Iterator[bool]:
    if not is_shown() or not _is_first() or not _drawing.acquire(blocking=False):
        yield False
        return
    try:
        yield True
    finally:
        _drawing.release()


def _is_interactive() -> bool:
    return _is_terminal() and bool(terminal().is_interactive)


def _is_terminal() -> bool:
    try:
        return sys.stderr.isatty()
    except (AttributeError, ValueError):  # there is none, or it is closed
        return False


def _is_first() -> bool:
    return multiprocessing.parent_process() is None and this_rank().number == 0


def terminal() -> Any:
    """A console of rich on standard error that leaves the cursor visible: also a process that is killed leaves it so."""
    import rich.console  # here, as below: nothing is imported where nothing is drawn

    console = rich.console.Console(file=sys.stderr)
    console.show_cursor = lambda show=True: False
    return console


def bar(what: str, total: float | None, began: float) -> Any:
    """A `rich.progress.Progress` with one task. It takes one line, however narrow the terminal is.

    Nothing is shown until it is started.

    Arguments:
        began: when the work began, by `time.monotonic`.
    """
    import rich.progress as parts
    from rich.table import Column
    from rich.text import Text

    class Description(parts.ProgressColumn):  # type: ignore[misc]
        """The one column that becomes narrower, where there is no room."""

        def render(self, task: Any) -> Any:
            return Text(task.description, no_wrap=True, overflow="ellipsis")

    class Left(parts.ProgressColumn):  # type: ignore[misc]
        """The time for the rest, if that takes as long for each part as those that are done. rich's own, which goes by
        the last seconds, knows nothing until two are done."""

        def render(self, task: Any) -> Any:
            seconds = task.elapsed * (task.total - task.completed) / task.completed if task.completed else None
            return Text("" if seconds is None else f"{datetime.timedelta(seconds=max(0, round(seconds)))} left", "cyan")

    numbers = [parts.MofNCompleteColumn, parts.TimeElapsedColumn]
    if total is not None:
        numbers = [parts.TaskProgressColumn, *numbers, Left]
    whole = [parts.BarColumn(20, table_column=Column(no_wrap=True))]
    whole += [kind(table_column=Column(no_wrap=True)) for kind in numbers]
    quiet = {"auto_refresh": False, "transient": True, "redirect_stdout": False, "redirect_stderr": False}
    shown = parts.Progress(Description(), *whole, console=terminal(), **quiet)
    shown.add_task(what, total=total)
    shown.tasks[0].start_time = began
    return shown


class TerminalBar:
    """`bar`, where something draws it. Arguments: as of `bar`."""

    def __init__(self, what: str, total: float | None, began: float) -> None:
        self._shown = bar(what, total, began)

    def show(self, done: float, what: str) -> None:
        _update(self._shown, done, what)
        if self._shown.live.is_started:
            self._shown.refresh()
        else:
            self._shown.start()  # draws it, too

    def erase(self, done: float, what: str) -> None:
        _update(self._shown, done, what)
        self._shown.stop()


class Progress:
    """Shows a bar on standard error while a block runs: the part of the work that is done, and the time that is left::

        with Progress("injecting faults", total=300) as progress:
            for trial in range(300):
                run(trial)
                progress.advance()

    The bar is erased when the block ends, also by an exception. In a notebook it is below the cell. Elsewhere, nothing is
    written if standard error is not a terminal. Among several processes, ranks and blocks, only the first has a bar. The
    program's output is not changed: a line of it may follow the rest of a bar.

    `advance` draws the bar, at most ten times a second, and not in the first half second. This needs no other thread.

    Arguments:
        what: the work, such as "injecting faults".
        total: the amount that `advance` is going to count; None if it is not known.
        show: if False, there is never a bar.
        done: returns the work that is done, in place of `advance`; called on a thread that draws twice a second.
        ticks: if True, such a thread draws what `advance` counts, for work of which one part takes seconds.
    """

    def __init__(
        self,
        what: str,
        total: float | None = None,
        *,
        show: bool = True,
        done: Callable[[], float] | None = None,
        ticks: bool = False,
    ) -> None:
        self._what, self._total, self._show = what, total, show
        self._measure, self._ticks = done, ticks or done is not None
        self._now = ""
        self._done = 0.0
        self._next = float("inf")  # when to draw; never where there is no bar
        self._bar: Any = None  # a TerminalBar or a NotebookBar
        self._make: Callable[[str, float | None, float], Any] = TerminalBar
        self._lock = threading.RLock()
        self._left = contextlib.ExitStack()
        self._process, self._began = 0, 0.0  # a process of 0 means that nothing is shown

    def __enter__(self) -> Progress:
        in_notebook = self._show and notebook_bar.is_notebook()
        if self._show and self._left.enter_context(_claimed(lambda: in_notebook or _is_interactive())):
            self._make = notebook_bar.NotebookBar if in_notebook else TerminalBar
            self._process, self._began = os.getpid(), time.monotonic()
            self._next = self._began + FIRST
            self._left.callback(self._erase)
            if self._ticks:
                self._left.enter_context(self._ticking())
        return self

    def __exit__(self, *error: object) -> None:
        self._left.close()
        self._process = 0

    def advance(self, count: float = 1) -> None:
        """So much more is done."""
        self._done += count
        self._draw()

    def now(self, part: str) -> None:
        """This part is being worked on."""
        self._now = part
        self._draw()

    @contextlib.contextmanager
    def away(self) -> Iterator[None]:
        """The bar is away while the block runs, which writes to the terminal."""
        with self._lock:
            self._erase()
            yield

    @contextlib.contextmanager
    def _ticking(self) -> Iterator[None]:
        ended = threading.Event()

        def tick() -> None:
            while not ended.wait(TICK):
                self._draw()

        thread = threading.Thread(target=tick, name="amanda progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            if self._process == os.getpid():  # not in a fork, which has no such thread
                thread.join()

    def _draw(self) -> None:
        if time.monotonic() < self._next or self._process != os.getpid():
            return
        with self._lock, self._harmless():
            if self._bar is None:
                self._bar = self._make(self._what, self._total, self._began)
            self._bar.show(*self._state())
            self._next = time.monotonic() + PERIOD

    def _erase(self) -> None:
        if self._process != os.getpid():
            return
        with self._lock, self._harmless():
            if self._bar is not None:
                self._bar.erase(*self._state())

    def _state(self) -> tuple[float, str]:
        done = self._measure() if self._measure is not None else self._done
        return done, f"{self._what}: {self._now}" if self._now else self._what

    @contextlib.contextmanager
    def _harmless(self) -> Iterator[None]:
        """The work goes on where the terminal is gone."""
        try:
            yield
        except (OSError, ValueError):
            self._bar, self._next = None, float("inf")


def live_bar(total: float | None, done: Callable[[], float], what: Callable[[], str]) -> Callable[[], Any]:
    """A bar as `amanda.cli.live_table.live` takes it: each call gives a renderable of rich with the state of then."""
    made = functools.cache(functools.partial(bar, "", total, time.monotonic()))

    def renderable() -> Any:
        _update(made(), done(), what())
        return made().get_renderable()

    return renderable


def _update(shown: Any, done: float, what: str) -> None:
    shown.update(shown.tasks[0].id, completed=done, description=what)
