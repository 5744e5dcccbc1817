"""A table that is shown on a terminal while a program runs."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

REFRESHES = 2  # a second
FIRST, LONGEST = 1.0, 60.0  # seconds between tables that are printed; the time doubles


@contextlib.contextmanager
def live(table: Callable[[], Any]) -> Iterator[None]:
    """Shows what `table` returns, a renderable of rich, on standard error, if that is a terminal and rich is installed.

    If standard output is not, the table stays in its place, and is gone at the end. If it is, the program's own lines
    and such a table would overwrite each other: then it is printed below what is there, after 1, 2, 4, ... seconds.
    """
    if not sys.stderr.isatty() or importlib.util.find_spec("rich") is None:
        yield
    elif sys.stdout.isatty():
        with _printed(table):
            yield
    else:
        with _in_place(table):
            yield


@contextlib.contextmanager
def _in_place(table: Callable[[], Any]) -> Iterator[None]:
    import rich.console
    import rich.live

    with rich.live.Live(
        get_renderable=table,
        console=rich.console.Console(stderr=True),
        refresh_per_second=REFRESHES,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    ):
        yield


@contextlib.contextmanager
def _printed(table: Callable[[], Any]) -> Iterator[None]:
    import rich.console

    console, ended = rich.console.Console(stderr=True), threading.Event()

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
