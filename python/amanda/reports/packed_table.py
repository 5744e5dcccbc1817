"""Packed tables: the data of a table as a page holds it, small in the file and quick to read for a browser.

The text is base64 of a gzip stream of: the length of a JSON object, as 8 bytes; the object, padded to a multiple of 8
bytes; arrays; texts. Numbers are little-endian. The object has the table's `heading`, `headings`, `numbers` and `total`.
`rows` is the number of rows that the page has, and `lines` the most lines of a cell. Each of the `columns` has `texts` and
`keys`, as in `Table`, and `widest`, the letters of its longest line. Texts and keys are null, or one of:

- `{"words": [start, end], "count": n, "unknown": n, "same": [...], "codes": start}`: the n different words, in the order in
  which a column is sorted by them, are a text in UTF-8, each but the last followed by a byte of 0. If something is not
  known, `unknown` is the position of an empty word that stands for it, or else null. `same` has the positions of words
  that are sorted as the one before. An array of uint32 has the position of each row's word. If `codes` is null, each row
  has the word at its own position.
- `{"numbers": start}`: an array of float64; NaN where nothing is known.

Starts and ends are bytes from the beginning of the arrays. So a browser makes no object for a word, sorts by numbers only,
and reads a word when its row can be seen.

DataTables is no substitute for this and for templates/tables.js. It takes 600 KB in each page instead of 12 KB, and an
object of JavaScript for each row; a page holds a million rows as arrays.
"""

from __future__ import annotations

import base64
import gzip
import json
import math
import re
from array import array
from collections.abc import Sequence
from typing import Any

from amanda.reports.sections import Table

LEVEL = 6  # of gzip
_DIGITS = re.compile(r"\d+")


def packed(table: Table) -> str:
    """The data of a table, in base64."""
    parts = _Parts()
    texts = [parts.words(column) for column in table.texts]
    keys = [parts.keys(column) for column in table.keys]
    columns = [
        {"texts": text, "keys": key, "widest": max(map(_width, set(column)), default=0)}
        for text, key, column in zip(texts, keys, table.texts, strict=True)
    ]
    about = {
        "heading": table.heading,
        "headings": table.headings,
        "numbers": table.numbers,
        "total": table.total,
        "rows": len(table.texts[0]) if table.texts else 0,
        "lines": max((text.count("\n") + 1 for column in table.texts for text in set(column)), default=1),
        "columns": columns,
    }
    arrays = parts.joined()  # it completes what `columns` say of them
    head = json.dumps(about, separators=(",", ":"), allow_nan=False).encode()
    head += b" " * (-len(head) % 8)
    whole = b"".join([len(head).to_bytes(8, "little"), head, arrays])
    return base64.b64encode(gzip.compress(whole, LEVEL, mtime=0)).decode()


def natural(word: str) -> str:
    """A word as it is sorted: case does not count, and numbers in it do: conv9 comes before Conv10."""
    return _DIGITS.sub(lambda digits: digits[0].zfill(20), word.lower())


class _Parts:
    """The arrays and texts of a table. Those that need the larger alignment come first."""

    def __init__(self) -> None:
        self._numbers, self._codes, self._texts = array("d"), array("I"), bytearray()
        self._coded: list[dict[str, Any]] = []

    def keys(self, column: Sequence[float | str | None] | None) -> dict[str, Any] | None:
        if column is None:
            return None
        if any(isinstance(key, str) for key in column):
            return self.words([key if key is None else str(key) for key in column])
        start = len(self._numbers) * self._numbers.itemsize
        self._numbers.extend(math.nan if key is None else key for key in column)  # type: ignore[misc]
        return {"numbers": start}

    def words(self, column: Sequence[str | None]) -> dict[str, Any]:
        order = sorted((natural(word), word) for word in set(column) if word is not None)
        places = {word: place for place, (_, word) in enumerate(order)}
        same = [place for place in range(1, len(order)) if order[place][0] == order[place - 1][0]]
        unknown = len(order) if None in column else None
        words = [word.replace("\0", "\ufffd") for _, word in order] + [""] * (unknown is not None)
        start = len(self._texts)
        self._texts += "\0".join(words).encode(errors="replace")
        codes = array("I", (len(order) if word is None else places[word] for word in column))
        coded: dict[str, Any] = {
            "words": [start, len(self._texts)],
            "count": len(words),
            "unknown": unknown,
            "same": same,
        }
        coded["codes"] = None
        if any(code != row for row, code in enumerate(codes)):
            coded["codes"] = len(self._codes) * self._codes.itemsize
            self._codes.extend(codes)
        self._coded.append(coded)
        return coded

    def joined(self) -> bytes:
        before_codes = len(self._numbers) * self._numbers.itemsize
        before_texts = before_codes + len(self._codes) * self._codes.itemsize
        for coded in self._coded:
            coded["words"] = [before_texts + place for place in coded["words"]]
            if coded["codes"] is not None:
                coded["codes"] += before_codes
        self._coded = []
        return b"".join([self._numbers.tobytes(), self._codes.tobytes(), self._texts])


def _width(text: str) -> int:
    return max(map(len, text.split("\n")))
