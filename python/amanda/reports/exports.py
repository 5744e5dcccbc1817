"""Rows of a tool as files for other programs: CSV, JSON and Parquet."""

from __future__ import annotations

import csv
import json
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

from amanda.reports.data_frame import data_frame
from amanda.reports.whole_file import whole_file

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
    try:
        import pandas  # noqa: F401
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise ImportError(
            f"[{speaker}] to_parquet needs pandas and pyarrow: pip install 'amanda[parquet]'; to_csv and to_json need "
            "nothing"
        ) from error
    frame = data_frame(speaker, rows, fields)
    for name in [name for name, dtype in fields.items() if dtype == "object"]:
        frame[name] = [_as_text(_plain(getattr(row, name))) for row in rows]
    with whole_file(path) as unfinished:
        frame.to_parquet(unfinished, engine="pyarrow", index=False)


def _as_text(value: Any) -> Any:
    """What a cell holds: JSON for what has parts."""
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
