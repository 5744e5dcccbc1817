"""What a command shows on the terminal while a program runs."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

REFRESHES = 2  # a second


@contextlib.contextmanager
def showing(content: Callable[[], object]) -> Iterator[None]:
    """Shows text, or what else rich prints, while the body runs. It is asked for it twice a second.

    Only where standard error is a terminal and standard output is not: where both are one, the program's own lines and
    these would overwrite each other.
    """
    if not sys.stderr.isatty() or sys.stdout.isatty():
        yield
        return
    import rich.console
    import rich.live

    with rich.live.Live(
        get_renderable=content,
        console=rich.console.Console(stderr=True),
        refresh_per_second=REFRESHES,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    ):
        yield
