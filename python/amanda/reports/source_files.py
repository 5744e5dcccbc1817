"""Files of source code: whose they are, and the lines in them that rows name."""

from __future__ import annotations

import contextlib
import functools
import os
import sysconfig
from collections.abc import Iterator, Sequence

from amanda.driver.identity import cells

_INSTALLED = ("site-packages", "dist-packages")


@functools.cache
def is_library(path: str) -> bool:
    """True if the file is one of an installed package or of Python itself, and not the user's."""
    folders = path.replace("\\", "/").split("/")
    if any(name in folders for name in _INSTALLED):
        return True
    standard = sysconfig.get_paths()["stdlib"]
    return path.startswith(("<frozen ", standard + os.sep))


_folder: str | None = None


@contextlib.contextmanager
def paths_from_here() -> Iterator[None]:
    """In the block paths begin at the folder in which it is entered: the user's, while a program may go to others."""
    global _folder
    before, _folder = _folder, _working_folder()
    try:
        yield
    finally:
        _folder = before


def line_of_code(source: str) -> str:
    """A source line, "/home/me/model.py:12", as people read it: its path is from the working directory if it is in there,
    and of an installed package from the folder of all packages. A line of a notebook is "cell [3], line 2"."""
    source = cells.line_in_cell(source)
    path = source.replace("\\", "/")
    for name in _INSTALLED:
        _, found, inside = path.rpartition(f"/{name}/")
        if found:
            return inside
    here = _folder or _working_folder()
    return source.removeprefix(os.path.join(here, "")) if here else source


def short_line(source: str) -> str:
    """The same without folders: "model.py:12"."""
    return os.path.basename(cells.line_in_cell(source))


def _working_folder() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:  # somebody has removed it
        return ""


def split_line(source: str) -> tuple[str, int] | None:
    """The path and the number of "path:12"; None if it is no such line."""
    path, colon, number = source.rpartition(":")
    return (path, int(number)) if colon and number.isdigit() else None


def matching(paths: Sequence[str], wanted: str | os.PathLike[str]) -> list[str]:
    """The paths that are the wanted one, or else those that end with its parts. A cell is wanted as "cell [3]"."""
    wanted = os.fspath(wanted)
    exact = [
        path
        for path in paths
        if wanted in (path, cells.cell_of(path)) or os.path.abspath(path) == os.path.abspath(wanted)
    ]
    return exact or [path for path in paths if path.endswith(os.sep + os.path.normpath(wanted))]
