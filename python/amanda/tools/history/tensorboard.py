"""TensorBoard: the values of series as scalars. Needs tensorboard: import it where they are written."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import HistogramProto, Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from .alarms import Alarm
from .parameter_histograms import Histogram
from .series import Point, Tags, of_parameter
from .write_errors import explained


class TensorBoardFolder:
    """Writes files of events."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._tags = folder, Tags()
        self._writer: Any = None

    def drop_from(self, step: int) -> None:
        """Readers drop what was written for this step and later ones."""
        self._write(step, file_version="brain.Event:2")
        self._write(step, session_log=SessionLog(status=SessionLog.START))

    def add(self, step: int, points: list[Point], alarms: Sequence[Alarm], histograms: Sequence[Histogram]) -> None:
        values = [Summary.Value(tag=self._tags.of(series), simple_value=value) for series, value in points]
        values += [Summary.Value(tag=f"alarms/{alarm.kind}/{alarm.subject}", simple_value=1) for alarm in alarms]
        values += [
            Summary.Value(tag=self._tags.of(of_parameter(one.name, one.quantity)), histo=_of_tensorboard(one))
            for one in histograms
        ]
        self._write(step, summary=Summary(value=values))

    def flush(self) -> None:
        if self._writer is not None:
            with explained(self._folder):
                self._writer.flush()

    def close(self) -> None:
        """The next value opens another file."""
        writer, self._writer = self._writer, None
        if writer is not None:
            with explained(self._folder):
                writer.close()

    def _write(self, step: int, **what: Any) -> None:
        if self._writer is None:
            with explained(self._folder):
                self._writer = EventFileWriter(str(self._folder))
        self._writer.add_event(Event(wall_time=time.time(), step=step, **what))


def _of_tensorboard(one: Histogram) -> HistogramProto:
    """Its buckets have upper limits only, so an empty one comes first."""
    return HistogramProto(
        min=one.min,
        max=one.max,
        num=sum(one.counts),
        sum=one.sum,
        sum_squares=one.sum_squares,
        bucket_limit=one.edges,
        bucket=[0, *one.counts],
    )
