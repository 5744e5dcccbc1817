"""ModelArguments: what follows a file of a model in a command line: its inputs, and how often it is called."""

from __future__ import annotations

import argparse
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

_WITHOUT_NAME = "arr_"  # how numpy.savez names arrays that are given by position


class ModelArguments:
    """``--inputs FILE.npz`` and ``--runs N``.

    Arguments:
        argv: the file of the model, and what follows it.

    Raises:
        ValueError: an argument is wrong, or the file of inputs cannot be read.
    """

    def __init__(self, argv: Sequence[str]) -> None:
        parser = _Parser(Path(argv[0]).suffix)
        parser.add_argument("--inputs")
        parser.add_argument("--runs", type=int, default=1)
        given = parser.parse_args(argv[1:])
        if given.runs < 1:
            raise ValueError(f"argument --runs: expected a positive number, got {given.runs}")
        self.runs: int = given.runs
        self.arrays = None if given.inputs is None else _read(given.inputs)  #: by name; None if there is no file


def named(arrays: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """The arrays, by the names of inputs: they have these names already, or all of them are in the order of the inputs.

    Raises:
        ValueError: there is no such input.
    """
    if not set(arrays) & set(names):
        positions = {f"{_WITHOUT_NAME}{position}": name for position, name in enumerate(names)}
        arrays = {positions.get(key, key): array for key, array in arrays.items()}
    if unknown := [key for key in arrays if key not in names]:
        raise ValueError(
            f"argument --inputs: the model has no input {listed(unknown)}; it has {len(names)}: {listed(names)}"
        )
    return dict(arrays)


def listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names))


class _Parser(argparse.ArgumentParser):
    def __init__(self, suffix: str) -> None:
        super().__init__(add_help=False, allow_abbrev=False)
        self._suffix = suffix

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message}; what follows a {self._suffix} file is --inputs FILE.npz or --runs N")


def _read(path: str) -> dict[str, Any]:
    import numpy

    try:
        with numpy.load(path, allow_pickle=False) as arrays:
            return dict(arrays)
    except FileNotFoundError as error:
        raise ValueError(f"argument --inputs: can't open {path!r}: {error.strerror}") from None
    except (OSError, ValueError, TypeError, zipfile.BadZipFile) as error:  # TypeError: it has one array without a name
        raise ValueError(f"argument --inputs: {path!r} is no .npz file of numpy.savez: {error}") from None
