"""Parquet: the values of series, and the alarms, as folders of files. Needs pyarrow: import it where they are written."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from amanda.toolkit.programs import Rank

from .alarms import Alarm
from .parameter_histograms import Histogram
from .series import Point, Series
from .write_errors import explained

_TEXT = pa.dictionary(pa.int32(), pa.string())
SERIES = pa.schema(
    [("step", pa.int64())]
    + [(name, pa.uint64() if name == "op_id" else _TEXT) for name in Series._fields]  # 0 if it belongs to no operator
    + [("value", pa.float64()), ("host", _TEXT)]
)
_TYPES = {
    "int": pa.int64(),
    "int | None": pa.uint64(),
    "float | None": pa.float64(),
    "tuple[int, ...]": pa.list_(pa.int64()),
}
ALARMS = pa.schema(
    [(field.name, _TYPES.get(str(field.type), pa.string())) for field in dataclasses.fields(Alarm)] + [("host", _TEXT)]
)

HISTOGRAMS = pa.schema(
    [("step", pa.int64()), ("name", _TEXT), ("quantity", _TEXT)]
    + [("edges", pa.list_(pa.float64())), ("counts", pa.list_(pa.int64())), ("nonfinite", pa.int64())]
    + [(name, pa.float64()) for name in ("min", "max", "sum", "sum_squares")]
    + [("host", _TEXT)]
)


class ParquetFolder:
    """Writes ``series/rank=0/part-*.parquet``, and ``alarms`` and ``histograms`` alike: datasets, to which each rank adds
    its part. Each file is complete, or it is not there."""

    def __init__(self, folder: Path, rank: Rank) -> None:
        self._parts = {name: _Parts(folder / name / rank.folder) for name in ("series", "alarms", "histograms")}
        self._host = rank.host
        self._points: list[tuple[int, list[Point]]] = []
        self._alarms: list[Alarm] = []
        self._histograms: list[dict[str, Any]] = []

    def drop_from(self, step: int) -> None:
        """Drops what was written for this step and later ones, by a run that went further than its checkpoint."""
        for parts in self._parts.values():
            parts.drop_from(step)

    def add(self, step: int, points: list[Point], alarms: Sequence[Alarm], histograms: Sequence[Histogram]) -> None:
        self._points.append((step, points))
        self._histograms += [{"step": step, **one._asdict(), "host": self._host} for one in histograms]
        self._alarms += alarms

    def flush(self) -> None:
        """Writes what was added.

        Raises:
            OSError: it cannot be written. It is kept, and is written by the next call.
        """
        if self._points:
            self._parts["series"].write(lambda: _table(self._points, self._host))
            self._points = []
        if self._alarms:
            rows = [
                {**dataclasses.asdict(alarm), "op_id": alarm.op_id or 0, "host": self._host} for alarm in self._alarms
            ]
            self._parts["alarms"].write(lambda: pa.Table.from_pylist(rows, schema=ALARMS))
            self._alarms = []
        if self._histograms:
            self._parts["histograms"].write(lambda: pa.Table.from_pylist(self._histograms, schema=HISTOGRAMS))
            self._histograms = []

    def close(self) -> None:
        self.flush()


def _table(steps: Sequence[tuple[int, Sequence[Point]]], host: str) -> Any:
    every = [(step, series, value) for step, points in steps for series, value in points]
    columns = [pa.array([step for step, _, _ in every], pa.int64())]
    for i, name in enumerate(Series._fields):
        values = [series[i] or 0 if name == "op_id" else series[i] for _, series, _ in every]
        columns.append(pa.array(values, pa.uint64()) if name == "op_id" else pa.array(values).dictionary_encode())
    columns.append(pa.array([value for _, _, value in every], pa.float64()))
    columns.append(pa.array([host] * len(every)).dictionary_encode())
    return pa.table(columns, schema=SERIES)


class _Parts:
    """A folder of numbered files. They are in order: no step is in a file before that of an earlier step."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def _files(self) -> list[Path]:
        return sorted(self._folder.glob("part-*.parquet"))

    def write(self, make: Callable[[], Any]) -> None:
        files = self._files()
        number = int(files[-1].stem.removeprefix("part-")) + 1 if files else 0
        self._write(self._folder / f"part-{number:06}.parquet", make())

    def _write(self, path: Path, table: Any) -> None:
        partial = path.with_suffix(".partial")
        with explained(self._folder):
            try:
                self._folder.mkdir(parents=True, exist_ok=True)
                pq.write_table(table, partial)
                partial.replace(path)
            finally:
                partial.unlink(missing_ok=True)

    def drop_from(self, step: int) -> None:
        for path in reversed(self._files()):
            table = pq.read_table(path, partitioning=None)
            kept = table.filter(pc.less(table["step"], step))
            if kept.num_rows == table.num_rows:
                return
            if kept.num_rows:
                self._write(path, kept)
            else:
                path.unlink()
