"""A table that is shown on a terminal while a program runs."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

from amanda.reports import progress

REFRESHES = 2  # a second
FIRST, LONGEST = 1.0, 60.0  # seconds between tables that are printed; the time doubles


@contextlib.contextmanager
def live(table: Callable[[], Any]) -> Iterator[None]:
    """Shows what `table` returns, a renderable of rich, on standard error, if that is a terminal.

    If standard output is not, the table stays in its place, and is gone at the end. If it is, the program's own lines
    and such a table would overwrite each other: then it is printed below what is there, after 1, 2, 4, ... seconds. If
    there are several ranks, the first one shows its table.
    """
    with progress.claimed_terminal() as claimed:
        if not claimed:
            yield
        elif sys.stdout.isatty():
            with _printed(table):
                yield
        else:
            with _in_place(table):
                yield


@contextlib.contextmanager
def _in_place(table: Callable[[], Any]) -> Iterator[None]:
    import rich.live

    process = os.getpid()
    shown = rich.live.Live(
        get_renderable=table,
        console=progress.terminal(),
        refresh_per_second=REFRESHES,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    )
    shown.start()
    try:
        yield
    finally:
        if os.getpid() == process:  # else the program has forked, and it is the parent's
            shown.stop()


@contextlib.contextmanager
def _printed(table: Callable[[], Any]) -> Iterator[None]:
    console, ended = progress.terminal(), threading.Event()

    def print_often() -> None:
        seconds = FIRST
        while not ended.wait(seconds):
            with console.capture() as text:
                console.print("", table())
            sys.stderr.write(text.get())  # at once: no line of the program is in between
            sys.stderr.flush()
            seconds = min(2 * seconds, LONGEST)

    thread = threading.Thread(target=print_often, name="amanda table", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
