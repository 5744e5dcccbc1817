"""Rows of a tool as a pandas DataFrame."""

from __future__ import annotations

import typing
from collections.abc import Mapping, Sequence
from types import UnionType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas


def data_frame(speaker: str, rows: Sequence[Any], fields: Mapping[str, str | None]) -> pandas.DataFrame:
    """A table with a column for each of these attributes of the rows.

    Arguments:
        speaker: the tool's name in messages.
        fields: the attributes with their dtypes, as `fields_of` finds them. If a dtype is None, pandas finds it.

    Raises:
        ImportError: pandas is not installed.
    """
    try:
        import pandas
    except ImportError as error:
        raise ImportError(
            f"[{speaker}] to_pandas needs pandas: pip install 'amanda-nn[files]'; rows() needs nothing"
        ) from error
    table = pandas.DataFrame([[getattr(row, name) for name in fields] for row in rows], columns=list(fields))
    return table.astype({name: dtype for name, dtype in fields.items() if dtype})


def fields_of(kind: type[Any], *, without: Sequence[str] = (), **properties: str) -> dict[str, str | None]:
    """The fields of a dataclass of rows, and these properties, each with its dtype (None: as pandas finds).

    "object" stands for values that have no order.
    """
    hints = typing.get_type_hints(kind)
    own = {name: _dtype(name, hint) for name, hint in hints.items() if name not in without}
    return {**own, **properties}


def _dtype(name: str, hint: Any) -> str | None:
    if name.endswith("op_id"):
        return "uint64"  # only rows by "id" have it, and there it is known
    if isinstance(hint, UnionType):
        hint = tuple(sorted(part.__name__ for part in typing.get_args(hint)))
    if typing.get_origin(hint) is typing.Literal:
        hint = str
    known = {
        str: None,
        int: "int64",
        bool: "bool",
        float: "float64",
        ("NoneType", "float"): "float64",
        ("NoneType", "int"): "Int64",
        ("NoneType", "bool"): "boolean",
    }
    return known.get(hint, "object")
