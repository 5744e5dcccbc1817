"""Files of source code: whose they are, and the lines in them that rows name."""

from __future__ import annotations

import functools
import os
import sysconfig
from collections.abc import Sequence

_INSTALLED = ("site-packages", "dist-packages")


@functools.cache
def is_library(path: str) -> bool:
    """True if the file is one of an installed package or of Python itself, and not the user's."""
    folders = path.replace("\\", "/").split("/")
    if any(name in folders for name in _INSTALLED):
        return True
    standard = sysconfig.get_paths()["stdlib"]
    return path.startswith(("<frozen ", standard + os.sep))


def line_of_code(source: str) -> str:
    """A source line, "/home/me/model.py:12", with its path from the working directory if it is in there."""
    here = os.getcwd() + os.sep
    return source.removeprefix(here)


def split_line(source: str) -> tuple[str, int] | None:
    """The path and the number of "path:12"; None if it is no such line."""
    path, colon, number = source.rpartition(":")
    return (path, int(number)) if colon and number.isdigit() else None


def matching(paths: Sequence[str], wanted: str | os.PathLike[str]) -> list[str]:
    """The paths that are the wanted one, or else those that end with its parts."""
    wanted = os.fspath(wanted)
    exact = [path for path in paths if path == wanted or os.path.abspath(path) == os.path.abspath(wanted)]
    return exact or [path for path in paths if path.endswith(os.sep + os.path.normpath(wanted))]
