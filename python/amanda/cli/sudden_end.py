"""Ends of a process that leave a program no time: SIGTERM, and `os._exit`."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import NoReturn

LONGEST = 30.0  # seconds that the last action may take


@contextlib.contextmanager
def before_sudden_end(act: Callable[[int], int]) -> Iterator[None]:
    """Inside the block, `act` is called with the exit status before SIGTERM or `os._exit` ends this process.

    The process then ends as it would have, but `os._exit` with the status that `act` returns. So do processes that it
    forks, without `act`, and so does it if the program handles SIGTERM itself. `act` runs on a thread of its own: what
    the interrupted code has locked stays so.
    """
    process, exit_at_once = os.getpid(), os._exit

    def last_action(status: int) -> int:
        ends = [status]
        thread = threading.Thread(target=lambda: ends.append(act(status)), name="amanda end", daemon=True)
        thread.start()
        thread.join(LONGEST)
        return ends[-1]

    def end(status: int) -> NoReturn:
        if os.getpid() == process:
            os._exit = exit_at_once
            status = last_action(status)
        exit_at_once(status)

    def terminate(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        last_action(128 + number)
        os.kill(os.getpid(), number)

    os._exit = end
    try:
        with _handled(terminate):
            yield
    finally:
        if os._exit is end:
            os._exit = exit_at_once


_Handler = Callable[[int, FrameType | None], object]
_handler: _Handler | None = None
_forking = threading.local()


@contextlib.contextmanager
def _handled(handler: _Handler) -> Iterator[None]:
    """Handles SIGTERM, unless something does. Only the main thread can."""
    global _handler
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        signal.signal(signal.SIGTERM, handler)
        _handler = handler
    try:
        yield
    finally:
        _let_go()


def _let_go() -> None:
    global _handler
    if _handler is not None and signal.getsignal(signal.SIGTERM) is _handler:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _handler = None


# Python drops signals that a handler of Python's is for if they reach a child before it is set up. They wait until it is.
def _hold() -> None:
    if _handler is not None:
        _forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def _go_on() -> None:
    mask, _forking.mask = getattr(_forking, "mask", None), None
    if mask is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _go_on_in_child() -> None:
    _let_go()
    _go_on()


os.register_at_fork(before=_hold, after_in_parent=_go_on, after_in_child=_go_on_in_child)
