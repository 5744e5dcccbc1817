"""The end of a Python program: what Python prints of its exception, and the exit status."""

from __future__ import annotations

import contextlib
import sys


class _Interrupted(int):
    """The exit status of a process that Ctrl-C has ended."""


INTERRUPTED = _Interrupted(130)  # as shells give it; the process ends by the signal itself, as Python's do


def printed(error: BaseException) -> object:
    """Prints an exception that nothing has caught, as Python does, and returns the exit status."""
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
    if sys.version_info >= (3, 12):
        sys.last_exc = error
    try:
        sys.excepthook(type(error), error, error.__traceback__)
    except SystemExit as stopped:  # the hook's
        return stopped.code
    except BaseException as failure:
        tell("Error in sys.excepthook:")
        failure.__traceback__ = failure.__traceback__ and failure.__traceback__.tb_next  # without this frame
        sys.__excepthook__(type(failure), failure, failure.__traceback__)
        tell("\nOriginal exception was:")
        sys.__excepthook__(type(error), error, error.__traceback__)
    return INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1


def is_success(status: object) -> bool:
    """True for None and 0 among the arguments that `sys.exit` takes."""
    return status is None or (isinstance(status, int) and status == 0)


def leave(status: object) -> None:
    """Ends this process with a program's status. If the status is None, it returns.

    Raises:
        KeyboardInterrupt: the status is `INTERRUPTED`. Python prints nothing of it.
        SystemExit: it is another.
    """
    if status is INTERRUPTED:
        sys.excepthook = lambda *error: None  # it was printed when the program ended
        raise KeyboardInterrupt
    if status is not None:
        raise SystemExit(status)


def tell(text: str) -> None:
    """Prints on standard error, if it is not closed."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        print(text, file=sys.stderr, flush=True)
