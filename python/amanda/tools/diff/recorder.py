"""Recorder: writes down what every operator of a run returns."""

from __future__ import annotations

import os
from typing import Any

from . import values
from .record import Execution, Station
from .record_writer import RecordWriter
from .texts import text_of_array
from .watching import Seen, Watching, is_early

PATIENCE = 5.0  # seconds that other threads have to write what they are adding


class Recorder(Watching):
    """Records the results of every operator, forward, backward and in optimizers, into a folder::

        with Recorder("reference") as recorder, amanda.apply(recorder):
            train(model)

    Memory is bounded: results are written as they come, those of 64 MiB at a time. The record takes the bytes of all
    results together. If the program is interrupted, or the disk is full, what was written so far can be read.

    Arguments:
        folder: does not exist, or is empty.
        lines: whether an operator of a changed program must be at a line with the same text to be matched with one of the
            record. The comparison must have the same.

    Raises:
        FileExistsError: the folder has something in it.
        OSError: it cannot be written; also while the program runs.
    """

    def __init__(self, folder: str | os.PathLike[str], *, lines: bool = True) -> None:
        super().__init__("diff", lines=lines)
        self._writer = RecordWriter(folder)
        self._stations: dict[tuple[int, int | None], int] = {}  # their numbers, by id

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        self.close(interrupted=is_early(error))

    @property
    def executions(self) -> int:
        """The number of operators' runs that it has recorded so far."""
        return self._writer.executions

    @property
    def bytes(self) -> int:
        """The number of bytes of their results."""
        return self._writer.bytes

    def close(self, *, interrupted: bool = False) -> None:
        """Completes the record. It must be called, outside of the scope.

        If a signal has stopped the thread that records for good, what it was just adding is left out.

        Arguments:
            interrupted: the program has failed or was stopped. A comparison then says so, and ends where the record ends.
        """
        is_free = self._lock.acquire(timeout=PATIENCE)
        try:
            if is_free or not self._writer.is_writing:
                self._writer.close(interrupted=interrupted, unseen=self._unwatched())
        finally:
            if is_free:
                self._lock.release()

    def _ran(self, station: Station, seen: Seen) -> None:
        copies = [None if seen.are_views else values.kept(tensor) for tensor in seen.tensors]
        outputs = [
            text_of_array(tensor) if copy is None else text_of_array(copy, is_kept=True)
            for tensor, copy in zip(seen.tensors, copies, strict=True)
        ]
        with self._lock:
            self._note_unreadable(outputs)
            number = self._number(station)
            known = self._writer.known if station.accumulates else {}  # mostly what a backward operator has returned
            stored = [
                None if tensor is None else known.get(text) or self._writer.add_tensor(tensor, text)
                for tensor, text in zip(copies, outputs, strict=True)
            ]
            self._writer.add_execution(number, Execution(stored, outputs, seen.inputs, seen.forward))

    def _accumulated(self, station: Station, seen: Seen) -> None:
        self._ran(station, seen)

    def _number(self, station: Station) -> int:
        number = self._stations.get(station.id)
        if number is None:
            number = self._stations[station.id] = len(self._stations)
            self._writer.add_station(number, station)
        return number
