"""RecordWriter: writes a record, which `amanda.tools.diff.record.Record` reads."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from amanda.toolkit.arrays import known

from . import index, values
from .record import Execution, Station

BATCH_BYTES = 64 << 20  # of results that are written together


class RecordWriter:
    """Writes a record: tensors in files of their own, and an index, line by line.

    A file of tensors is complete before the index names it, so that a record that was interrupted can be read up to
    there.

    Raises:
        FileExistsError: the folder has something in it.
        OSError: it cannot be written.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = Path(folder).absolute()  # the program may change the current folder
        self._folder.mkdir(parents=True, exist_ok=True)
        if any(self._folder.iterdir()):
            raise FileExistsError(
                f"[diff] {os.fspath(folder)!r} is not empty; a record is written into a folder of its own"
            )
        self._index: IO[str] = open(self._folder / index.NAME, "w", encoding="ascii")  # noqa: SIM115
        self._lines: list[Any] = []
        self._tensors: dict[str, dict[str, Any]] = {}  # by framework
        self._bytes = 0
        self._next = 0
        self.executions = self.bytes = 0  # that were added
        self.known: dict[str, int] = {}  # numbers of tensors that were not written yet, by their texts
        self._files = 0
        self._is_complete = True
        self._write([index.head()])

    def add_station(self, number: int, station: Station) -> None:
        self._lines.append(["place", number, *dataclasses.astuple(station)])

    def add_execution(self, number: int, execution: Execution) -> None:
        self.executions += 1
        self._lines.append(["run", number, execution.results, execution.outputs, execution.inputs, execution.forward])
        if self._bytes >= BATCH_BYTES:
            self.flush()

    def add_tensor(self, tensor: Any, text: str) -> int:
        """Its number. The tensor must not change any more. `text`: what it is, with a hash."""
        self._next += 1
        self.known[text] = self._next
        self._tensors.setdefault(values.framework_of(tensor), {})[str(self._next)] = tensor
        size = known(tensor).nbytes(tensor)
        self._bytes += size
        self.bytes += size
        return self._next

    def flush(self) -> None:
        """Writes what was added. Data that a full disk refused is dropped; the record stays readable up to there."""
        lines, tensors = self._lines, self._tensors
        self._lines, self._tensors, self._bytes, self.known = [], {}, 0, {}
        complete, self._is_complete = self._is_complete, False
        files = [self._write_file(framework, some) for framework, some in tensors.items()]
        self._write([index.line(line) for line in (*files, *lines)])
        self._is_complete = complete

    @property
    def is_writing(self) -> bool:
        """True if `flush` is running, or has failed."""
        return not self._is_complete

    def close(self, *, interrupted: bool = False, unseen: Sequence[str] = ()) -> None:
        """`unseen`: the operators that ran and were not seen, as sentences."""
        try:
            self._lines += [["unseen", text] for text in unseen]
            self.flush()
            if self._is_complete and not interrupted:
                self._write([index.line(["end"])])
        finally:
            self._index.close()

    def _write_file(self, framework: str, tensors: dict[str, Any]) -> list[Any]:
        from . import tensor_file

        self._files += 1
        name = f"{self._files}.safetensors"
        checksum = tensor_file.write(self._folder / name, tensors, framework)
        return ["file", name, checksum, list(map(int, tensors))]

    def _write(self, lines: list[str]) -> None:
        self._index.write("".join(lines))
        self._index.flush()
