"""Rows of a tool as a pandas DataFrame."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas


def data_frame(
    speaker: str, rows: Sequence[Any], columns: Sequence[str], types: Mapping[str, str] | None = None
) -> pandas.DataFrame:
    """A table with one column per listed attribute of the rows.

    Arguments: speaker: the tool's name in messages. types: of columns whose type pandas should not infer, because there
        may be no rows, or missing values.

    Raises:
        ImportError: pandas is not installed.
    """
    try:
        import pandas
    except ImportError as error:
        raise ImportError(
            f"[{speaker}] to_pandas needs pandas: pip install 'amanda[statistics]'; rows() needs nothing"
        ) from error
    table = pandas.DataFrame([[getattr(row, column) for column in columns] for row in rows], columns=list(columns))
    return table.astype(dict(types or {}))


def field_names(kind: type[Any]) -> list[str]:
    """The fields of a dataclass of rows."""
    return [field.name for field in dataclasses.fields(kind)]
