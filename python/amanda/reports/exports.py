"""Rows of a tool as files for other programs: CSV, JSON and Parquet."""

from __future__ import annotations

import csv
import json
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

from amanda.reports.data_frame import data_frame
from amanda.reports.rank import this_rank
from amanda.reports.whole_file import whole_file

DATASET_SCHEMA = 1  # of the files of datasets; see docs/distributed.md
PART = "part-0.parquet"
ROW_GROUP = 65_536  # rows of a Parquet file that are written at once

Fields = Mapping[str, str | None]
"""The attributes that become columns, as `fields_of` finds them."""


def write_csv(path: str | os.PathLike[str], rows: Sequence[Any], fields: Fields) -> None:
    """See `Results.to_csv`."""
    with whole_file(path) as unfinished, open(unfinished, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(fields)
        writer.writerows([_as_text(_plain(getattr(row, name))) for name in fields] for row in rows)


def write_json(path: str | os.PathLike[str], rows: Sequence[Any], fields: Fields) -> None:
    """See `Results.to_json`."""
    found = [{name: _plain(getattr(row, name)) for name in fields} for row in rows]
    with whole_file(path) as unfinished, open(unfinished, "w", encoding="utf-8") as file:
        json.dump(found, file, indent=1, allow_nan=False)


def write_parquet(speaker: str, path: str | os.PathLike[str], rows: Sequence[Any], fields: Fields) -> None:
    """See `Results.to_parquet`."""
    _write_parquet(f"[{speaker}] to_parquet", path, speaker, rows, fields)


def write_dataset(
    speaker: str, folder: str | os.PathLike[str], rows: Sequence[Any], fields: Fields, number: int | None
) -> None:
    """See `Results.to_dataset`."""
    rank = this_rank()
    if number is not None:
        rank = rank._replace(number=number)
    path = os.path.join(folder, rank.folder, PART)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    whose = {"rank": rank.number, "world_size": rank.world_size, "host": rank.host}
    about = {"schema": DATASET_SCHEMA, "tool": speaker, **whose}
    _write_parquet(f"[{speaker}] to_dataset", path, speaker, rows, fields, about)


def _write_parquet(
    method: str,
    path: str | os.PathLike[str],
    speaker: str,
    rows: Sequence[Any],
    fields: Fields,
    about: Mapping[str, Any] | None = None,
) -> None:
    """Writes row groups. Each is made after the previous one is written: memory holds `rows` and one group."""
    try:
        import pandas  # noqa: F401
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ImportError(
            f"{method} needs pandas and pyarrow: pip install 'amanda-nn[files]'; to_csv and to_json need nothing"
        ) from error

    def group(some: Sequence[Any]) -> Any:
        frame = data_frame(speaker, some, fields)
        for name in [name for name, dtype in fields.items() if dtype == "object"]:
            frame[name] = [_as_text(_plain(getattr(row, name))) for row in some]
        return frame if about is None else frame.assign(host=about["host"])

    first = group(rows[:ROW_GROUP])
    schema = pyarrow.Schema.from_pandas(first, preserve_index=False)
    for i, field in enumerate(schema):  # columns without a value: the same type in all files of a dataset
        if pyarrow.types.is_null(field.type):
            schema = schema.set(i, field.with_type(pyarrow.string()))
    if about is not None:
        schema = schema.with_metadata({**schema.metadata, "amanda": json.dumps(about)})
    with whole_file(path) as unfinished, pyarrow.parquet.ParquetWriter(unfinished, schema) as writer:
        writer.write_table(pyarrow.Table.from_pandas(first, schema, preserve_index=False))
        for start in range(ROW_GROUP, len(rows), ROW_GROUP):
            some = group(rows[start : start + ROW_GROUP])
            writer.write_table(pyarrow.Table.from_pandas(some, schema, preserve_index=False))


def _as_text(value: Any) -> Any:
    """The content of a cell: JSON for a value that has parts."""
    return json.dumps(value) if isinstance(value, (list, dict)) else value


def _plain(value: Any) -> Any:
    """The value in JSON's types."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(part) for part in value]
    if hasattr(value, "tolist"):  # arrays and tensors
        return _plain(value.tolist())
    return str(value)
