"""Record: a folder that holds what the operators of a run returned."""

from __future__ import annotations

import collections
import dataclasses
import importlib.util
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from amanda.reports.progress import Progress

VERSION = 2
BATCH_BYTES = 64 << 20  # of results that are written together
CACHE_FILES = 4
MEGABYTE = 1e6

_HEAD = "amanda diff record"
_INDEX = "index.jsonl"


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
    names: tuple[str, ...]  # of inputs; "" for those of a backward operator
    parameters: tuple[tuple[str, ...], ...]  # for each input: the parameter's name or "", of a list all

    @property
    def accumulates(self) -> bool:
        """Does it add a gradient to that of a leaf? Then it has no results."""
        return self.backward_op == "AccumulateGrad"

    @property
    def id(self) -> tuple[int, int | None]:
        return self.op_id, self.backward_op_id

    @property
    def look(self) -> tuple[str, ...]:
        """What a place has in common with its counterpart in a changed program, whose ids are others."""
        names = (name for parameters in self.parameters for name in parameters if name)
        return self.operator, self.backward_op, self.module_path, self.line, *names


@dataclasses.dataclass(frozen=True)
class Execution:
    """One run of an operator. Results are its tensors, then those that it changes in place and does not return."""

    results: list[int | None]  # numbers of tensors; None: it is not stored
    told: list[str]  # what they are, with a hash: see `texts`
    inputs: list[str]  # the same of all inputs
    forward: int | None = None  # of a backward operator: which run of the forward operator it belongs to


class RecordWriter:
    """Writes a record: tensors in files of their own, and an index, line by line.

    A file of tensors is complete before the index names it, so that a record that was interrupted can be read up to
    there.

    Raises:
        ImportError: numpy or safetensors is not installed.
        FileExistsError: the folder has something in it.
        OSError: it cannot be written.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        check_packages()
        self._folder = Path(folder).absolute()  # the program may change the current folder
        self._folder.mkdir(parents=True, exist_ok=True)
        if any(self._folder.iterdir()):
            raise FileExistsError(
                f"[diff] {os.fspath(folder)!r} is not empty; a record is written into a folder of its own"
            )
        self._index: IO[str] = open(self._folder / _INDEX, "w", encoding="utf-8")  # noqa: SIM115
        self._lines: list[Any] = []
        self._tensors: dict[str, Any] = {}
        self._bytes = 0
        self._next = 0
        self.executions = self.bytes = 0  # that were added
        self._files = 0
        self._is_complete = True
        self._write_lines([[_HEAD, VERSION]])

    def add_station(self, number: int, station: Station) -> None:
        self._lines.append(["place", number, *dataclasses.astuple(station)])

    def add_execution(self, number: int, execution: Execution) -> None:
        self.executions += 1
        self._lines.append(["run", number, execution.results, execution.told, execution.inputs, execution.forward])
        if self._bytes >= BATCH_BYTES:
            self.flush()

    def add_tensor(self, tensor: Any) -> int:
        """Its number. The tensor must not change any more."""
        self._next += 1
        self._tensors[str(self._next)] = tensor
        size = tensor.numel() * tensor.element_size()
        self._bytes += size
        self.bytes += size
        return self._next

    def flush(self) -> None:
        """Writes what was added. What a full disk refused is forgotten; the record stays readable up to there."""
        lines, tensors = self._lines, self._tensors
        self._lines, self._tensors, self._bytes = [], {}, 0
        complete, self._is_complete = self._is_complete, False
        if tensors:
            from amanda.tools import _tensor_file

            self._files += 1
            name = f"{self._files}.safetensors"
            _tensor_file.write("diff", self._folder / name, tensors)
            lines = [["file", name, *map(int, tensors)], *lines]
        self._write_lines(lines)
        self._is_complete = complete

    @property
    def is_writing(self) -> bool:
        """Is `flush` under way, or has it failed?"""
        return not self._is_complete

    def close(self, *, interrupted: bool = False) -> None:
        try:
            self.flush()
            if self._is_complete and not interrupted:
                self._write_lines([["end"]])
        finally:
            self._index.close()

    def _write_lines(self, lines: list[Any]) -> None:
        self._index.write("".join(json.dumps(line) + "\n" for line in lines))
        self._index.flush()


def is_record(folder: str | os.PathLike[str]) -> bool:
    return (Path(folder) / _INDEX).is_file()


class Record:
    """Reads a record.

    Arguments:
        progress: a bar on standard error meanwhile, if that is a terminal; see `amanda.reports.progress.Progress`.

    Raises:
        ImportError: numpy or safetensors is not installed.
        ValueError: it is no record, or of another version.
        OSError: it cannot be read.
    """

    def __init__(self, folder: str | os.PathLike[str], *, progress: bool = True) -> None:
        check_packages()
        self._given = os.fspath(folder)
        self._folder = Path(folder).absolute()  # the program may change the current folder
        self.stations: list[Station] = []  # in the order of their first runs
        self.is_complete = False  # else the recording was interrupted, and this is what came before
        self.executions: list[tuple[int, Execution]] = []  # in order, with the position of the station
        self._runs: dict[int, list[Execution]] = collections.defaultdict(list)
        self._file_of: dict[int, str] = {}
        self._open: collections.OrderedDict[str, dict[str, Any]] = collections.OrderedDict()
        numbers: dict[int, int] = {}
        for line in self._lines(progress):
            match line:
                case ["place", int(number), *fields, names, parameters]:
                    numbers[number] = len(self.stations)
                    given: list[Any] = [*fields, tuple(names), tuple(map(tuple, parameters))]
                    self.stations.append(Station(*given))
                case ["run", int(number), *fields]:
                    execution = Execution(*fields)
                    self.executions.append((numbers[number], execution))
                    self._runs[numbers[number]].append(execution)
                case ["file", str(name), *tensors]:
                    self._file_of.update(dict.fromkeys(tensors, name))
                case ["end"]:
                    self.is_complete = True

    def runs(self, station: int) -> list[Execution]:
        """Of the station at this position of `stations`, in order."""
        return self._runs[station]

    def tensor(self, number: int) -> Any:
        name = self._file_of[number]
        if name not in self._open:
            from safetensors.torch import load_file

            self._open[name] = load_file(self._folder / name)
            if len(self._open) > CACHE_FILES:
                self._open.popitem(last=False)
        self._open.move_to_end(name)
        return self._open[name][str(number)]

    def _lines(self, shows_progress: bool) -> Iterator[Any]:
        folder = self._given
        try:
            file = open(self._folder / _INDEX, encoding="utf-8")  # noqa: SIM115
        except FileNotFoundError:
            raise ValueError(
                f"[diff] {folder!r} is no record: it has no index.jsonl; make one with amanda diff --record"
            ) from None
        size = os.fstat(file.fileno()).st_size / MEGABYTE
        with file, Progress("reading the record, in MB", size, show=shows_progress) as progress:
            head = _parsed(file.readline())
            if not isinstance(head, list) or head[:1] != [_HEAD]:
                raise ValueError(f"[diff] {folder!r} is no record: its index.jsonl is something else")
            if head[1] != VERSION:
                raise ValueError(
                    f"[diff] {folder!r} is a record of version {head[1]}, and this Amanda reads version {VERSION}; "
                    "record it again"
                )
            for text in file:
                progress.advance(len(text) / MEGABYTE)  # it is ASCII
                line = _parsed(text)
                if line is None:
                    return  # it was being written
                yield line


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def check_packages() -> None:
    """Without safetensors nothing can be stored; without numpy PyTorch hands out no elements to hash.

    Raises:
        ImportError: one is not installed.
    """
    missing = [name for name in ("numpy", "safetensors") if importlib.util.find_spec(name) is None]
    if missing:
        raise ImportError(f"[diff] records need {' and '.join(missing)}: pip install 'amanda[diff]'")
