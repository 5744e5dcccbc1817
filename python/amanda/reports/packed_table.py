"""Packed tables: the data of a table as a page holds it, small in the file and quick to read for a browser.

The text is base64 of a gzip stream of: the length of a JSON object, as 8 bytes; the object, padded to a multiple of 8
bytes; arrays. All is little-endian. The object has the table's `heading`, `headings`, `numbers` and `total`; `rows`, those
that the page has; and a list `columns`, each with `texts` and `keys`, as in `Table`. These are null, or one of:

- `{"words": [...], "codes": position}`: an array of uint32 has the position of each row's word. If `codes` is null, each
  row has its own word. A word can be null: nothing is known.
- `{"numbers": position}`: an array of float64; NaN where nothing is known.

Positions are bytes from the beginning of the arrays.

DataTables is no substitute for this and for templates/tables.js. It takes 600 KB in each page instead of 5 KB, and an
object of JavaScript for each row; a page holds a million rows as arrays.
"""

from __future__ import annotations

import base64
import gzip
import json
import math
from array import array
from collections.abc import Sequence
from typing import Any

from amanda.reports.sections import Table

LEVEL = 6  # of gzip


def packed(table: Table) -> str:
    """The data of a table, in base64."""
    numbers, codes = array("d"), array("I")
    texts = [_coded(column, codes) for column in table.texts]
    keys = [_keys(column, numbers, codes) for column in table.keys]
    for coded in [*texts, *keys]:
        if coded is not None and coded.get("codes") is not None:
            coded["codes"] += len(numbers) * numbers.itemsize  # which come first: they need the larger alignment
    about = {
        "heading": table.heading,
        "headings": table.headings,
        "numbers": table.numbers,
        "total": table.total,
        "rows": len(table.texts[0]) if table.texts else 0,
        "columns": [{"texts": text, "keys": key} for text, key in zip(texts, keys, strict=True)],
    }
    head = json.dumps(about, separators=(",", ":"), allow_nan=False).encode()
    head += b" " * (-len(head) % 8)
    whole = b"".join([len(head).to_bytes(8, "little"), head, numbers.tobytes(), codes.tobytes()])
    return base64.b64encode(gzip.compress(whole, LEVEL, mtime=0)).decode()


def _keys(column: Sequence[float | str | None] | None, numbers: array[float], codes: array[int]) -> Any:
    if column is None:
        return None
    if any(isinstance(key, str) for key in column):
        return _coded([key if key is None else str(key) for key in column], codes)
    start = len(numbers) * numbers.itemsize
    numbers.extend(math.nan if key is None else key for key in column)  # type: ignore[misc]
    return {"numbers": start}


def _coded(column: Sequence[Any], codes: array[int]) -> dict[str, Any]:
    known: dict[Any, int] = {}
    of_rows = array("I", (known.setdefault(word, len(known)) for word in column))
    start: int | None = len(codes) * codes.itemsize
    if len(known) < len(column):
        codes.extend(of_rows)
    else:
        start = None
    return {"words": list(known), "codes": start}
