"""The text of an error where a file cannot be written."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def explained(path: Path) -> Iterator[None]:
    """A context in which an `OSError` names the file that could not be written."""
    try:
        yield
    except OSError as error:
        if str(error).startswith("[history]"):
            raise
        reason = error.strerror or str(error)
        text = f"[history] can't write to {str(path)!r}: {reason}; what was written before can be read"
        raise type(error)(text) from error
