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
from collections.abc import Collection, Sequence
from typing import Any

from amanda.reports.sections import Table

LEVEL = 4  # of gzip; 6 takes four times as long, and saves 1%
_DIGITS = re.compile(r"\d+")


def packed(table: Table) -> str:
    """The data of a table, in base64."""
    parts = _Parts()
    texts = [parts.words(column) for column in table.texts]
    keys = [parts.keys(column) for column in table.keys]
    sizes = [_size(set(column)) for column in table.texts]
    columns = [
        {"texts": text, "keys": key, "widest": widest}
        for text, key, (widest, _) in zip(texts, keys, sizes, strict=True)
    ]
    about = {
        "heading": table.heading,
        "headings": table.headings,
        "numbers": table.numbers,
        "total": table.total,
        "rows": len(table.texts[0]) if table.texts else 0,
        "lines": max((lines for _, lines in sizes), default=1),
        "columns": columns,
    }
    arrays = parts.joined()  # it completes what `columns` say of them
    head = json.dumps(about, separators=(",", ":"), allow_nan=False).encode()
    head += b" " * (-len(head) % 8)
    whole = b"".join([len(head).to_bytes(8, "little"), head, arrays])
    return base64.b64encode(gzip.compress(whole, LEVEL, mtime=0)).decode()


def naturals(words: Sequence[str]) -> list[str]:
    """Words as they are sorted: case does not count, and numbers in them do: conv9 comes before Conv10.

    A million words are one text for the pattern, which takes half the time.
    """
    together = "\0".join(words).lower()
    if together.count("\0") >= len(words) > 0:  # a word has one
        return [_natural(word.lower()) for word in words]
    return _natural(together).split("\0") if words else []


def _natural(text: str) -> str:
    return _DIGITS.sub(lambda digits: digits[0].zfill(20), text)


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
        known = sorted(word for word in set(column) if word is not None)
        sorted_as = naturals(known)
        order = sorted(range(len(known)), key=sorted_as.__getitem__)
        sorted_as = [sorted_as[place] for place in order]
        same = [place for place, one in enumerate(sorted_as[1:], 1) if one == sorted_as[place - 1]]
        words: list[str | None] = [known[place] for place in order]
        unknown = len(words) if None in column else None
        if unknown is not None:
            words.append(None)
        places = dict(zip(words, range(len(words)), strict=True))
        text = "\0".join("" if word is None else word.replace("\0", "\ufffd") for word in words)
        start = len(self._texts)
        self._texts += text.encode(errors="replace")
        codes = array("I", map(places.__getitem__, column))
        coded: dict[str, Any] = {
            "words": [start, len(self._texts)],
            "count": len(words),
            "unknown": unknown,
            "same": same,
        }
        coded["codes"] = None
        if codes != array("I", range(len(codes))):
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


def _size(texts: Collection[str]) -> tuple[int, int]:
    """The letters of the longest line, and the most lines of a text."""
    tall = [text for text in texts if "\n" in text]
    flat = [text for text in texts if "\n" not in text] if tall else texts
    widths = (max(map(len, text.split("\n"))) for text in tall)
    return max([*widths, max(map(len, flat), default=0)]), max((text.count("\n") for text in tall), default=0) + 1
