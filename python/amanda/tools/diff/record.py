"""Record: a folder that holds what the operators of a run returned."""

from __future__ import annotations

import collections
import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from amanda.toolkit.tables import Progress

from . import index
from .tensor_file import TensorFile
from .texts import text_of_array

MEGABYTE = 1e6
ACCUMULATES = "AccumulateGrad"


@dataclasses.dataclass(frozen=True)
class Station:
    """An operator at its place in the program, forward or backward."""

    op_id: int
    backward_op_id: int | None
    operator: str  # "aten::linear", "aten::add.Tensor"
    backward_op: str  # "AddmmBackward0"; "" of a forward operator
    module_path: str
    source: str
    line: str  # the text of that line: it stays when the line moves
    is_view: bool  # its results may share memory with an input
    is_compiled: bool  # of a compiled function: its backward operators are not compared
    names: tuple[str, ...]  # of inputs; () for a backward operator, unless it accumulates
    parameters: tuple[tuple[str, ...], ...]  # for each input: the parameter's name or "", of a list all

    @property
    def accumulates(self) -> bool:
        """True if it adds a gradient to that of a leaf. Then the leaf's `.grad` is its result."""
        return self.backward_op == ACCUMULATES

    @property
    def id(self) -> tuple[int, int | None]:
        return self.op_id, self.backward_op_id

    @property
    def look(self) -> tuple[str, ...]:
        """The features that a place has in common with its counterpart in a changed program, whose ids are others."""
        names = (name for parameters in self.parameters for name in parameters if name)
        return self.operator, self.backward_op, self.module_path, self.line, *names


@dataclasses.dataclass(frozen=True)
class Execution:
    """One run of an operator. Results are its tensors, then those that it changes in place and does not return."""

    results: list[int | None]  # numbers of tensors; None if a tensor is not stored
    outputs: list[str]  # their texts, with a hash: see texts.py
    inputs: list[str]  # the same of all inputs
    forward: int | None = None  # of a backward operator: which run of the forward operator it belongs to


class DamagedRecord(ValueError):
    """A file of a record is not what it was when it was written."""


def is_record(folder: str | os.PathLike[str]) -> bool:
    return (Path(folder) / index.NAME).is_file()


class Record:
    """Reads a record. All but the elements of its tensors is checked at once; these are checked as they are read.

    Arguments:
        progress: a bar on standard error meanwhile, if that is a terminal; see `amanda.reports.progress.Progress`.

    Raises:
        ValueError: it is no record, or of another version, or damaged.
        OSError: it cannot be read.
    """

    def __init__(self, folder: str | os.PathLike[str], *, progress: bool = True) -> None:
        self._given = os.fspath(folder)
        self._folder = Path(folder).absolute()  # the program may change the current folder
        self.stations: list[Station] = []  # in the order of their first runs
        self.is_complete = False  # else the recording was stopped, and this is what came before
        self.unseen: list[str] = []  # what else ran, as sentences
        self.executions: list[tuple[int, Execution]] = []  # in order, with the position of the station
        self._runs: dict[int, list[int]] = collections.defaultdict(list)  # positions of executions
        self._files: dict[str, TensorFile] = {}
        self._file_of: dict[int, str] = {}
        self._numbers: dict[int, int] = {}  # positions of stations
        for number, line in self._lines(progress):
            try:
                self._add(line)
            except (KeyError, TypeError, ValueError) as error:
                raise error if isinstance(error, DamagedRecord) else self._damaged(_line(number)) from None

    def positions(self, station: int) -> list[int]:
        """The positions in `executions` of the runs of the station at this position of `stations`, in order."""
        return self._runs[station]

    def runs(self, station: int) -> list[Execution]:
        """The runs of the station at this position of `stations`, in order."""
        return [self.executions[i][1] for i in self._runs[station]]

    def result(self, execution: Execution, i: int) -> Any:
        """A result of an execution; None if it is not stored.

        Raises:
            DamagedRecord: the file has changed.
        """
        number = execution.results[i]
        if number is None:
            return None
        name = self._file_of[number]
        try:
            found = self._files[name].read(str(number))
        except (ValueError, OSError) as error:
            raise self._damaged(name, str(error)) from error
        if text_of_array(found, is_kept=True) != execution.outputs[i]:
            raise self._damaged(name, "the elements of a tensor are others than were recorded")
        return found

    def _add(self, line: Any) -> None:
        match line:
            case ["place", int(number), *fields, names, parameters]:
                self._numbers[number] = len(self.stations)
                given: list[Any] = [*fields, tuple(names), tuple(map(tuple, parameters))]
                self.stations.append(Station(*given))
            case ["run", int(number), list(results), list(outputs), list(inputs), forward]:
                station = self._numbers[number]
                if not self._file_of.keys() >= {result for result in results if result is not None}:
                    raise KeyError
                self._runs[station].append(len(self.executions))
                self.executions.append((station, Execution(results, outputs, inputs, forward)))
            case ["file", str(name), int(checksum), list(tensors)]:
                self._files[name] = self._opened(name, checksum, tensors)
                self._file_of.update(dict.fromkeys(tensors, name))
            case ["unseen", str(text)]:
                self.unseen.append(text)
            case ["end"]:
                self.is_complete = True
            case _:
                raise ValueError

    def _opened(self, name: str, checksum: int, tensors: list[int]) -> TensorFile:
        try:
            file = TensorFile(self._folder / name, checksum)
        except FileNotFoundError:
            raise self._damaged(name, "it is missing") from None
        except (ValueError, OSError) as error:
            raise self._damaged(name, str(error)) from None
        if file.names != set(map(str, tensors)):
            raise self._damaged(name, "it has other tensors")
        return file

    def _lines(self, shows_progress: bool) -> Iterator[tuple[int, Any]]:
        """Each with its number."""
        folder = self._given
        try:
            file = open(self._folder / index.NAME, "rb")  # noqa: SIM115
        except (FileNotFoundError, NotADirectoryError):
            raise ValueError(
                f"[diff] {folder!r} is no record: it has no {index.NAME}; make one with amanda diff --record"
            ) from None
        size = os.fstat(file.fileno()).st_size / MEGABYTE
        with file, Progress("reading the record, in MB", size, show=shows_progress) as progress:
            try:
                index.check_head(file.readline())
            except ValueError as error:
                raise ValueError(f"[diff] {folder!r} {error}") from None
            for number, text in enumerate(file, 2):
                progress.advance(len(text) / MEGABYTE)
                if not text.endswith(b"\n"):
                    return  # it was being written
                try:
                    content = index.content(text)
                except ValueError:
                    raise self._damaged(_line(number)) from None
                yield number, content

    def _damaged(self, what: str, why: str = "it is not what was written") -> DamagedRecord:
        path = os.path.join(self._given, what)
        return DamagedRecord(f"[diff] the record is damaged: {path}: {why}; record it again")


def _line(number: int) -> str:
    return f"{index.NAME}, line {number}"
