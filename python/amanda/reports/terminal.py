"""The terminal to which this process prints."""

from __future__ import annotations

import shutil
import sys


def terminal_width() -> int | None:
    """The width of the terminal that print() writes to; None if it writes to something else."""
    return shutil.get_terminal_size().columns if sys.stdout is not None and sys.stdout.isatty() else None
