"""Errors of analyses: Dynamo would show them as failures of its backend."""

from __future__ import annotations

import threading


class NoTapsError(Exception):
    """No taps can be put into a function. The text is the reason."""


class Failure:
    """The exception that an analysis raised while a frame was compiled, or a NoTapsError."""

    error: Exception | None = None


class _Here(threading.local):
    expected = Failure()


_here = _Here()


def expect() -> Failure:
    """The object in which the next error of this thread is noted."""
    _here.expected = Failure()
    return _here.expected


def note(error: Exception) -> None:
    _here.expected.error = error
