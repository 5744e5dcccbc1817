"""The tables of a page, read from its file: by numpy, as the format in packed_table.py is described."""

import base64
import gzip
import json
import re

import numpy


def tables_of(page):
    """The fields of each `Table`, as it was before it was packed."""
    return [
        _unpacked(text) for text in re.findall(r'<div class="table"><script type="text/plain">(.*?)</script>', page)
    ]


def _unpacked(text):
    whole = gzip.decompress(base64.b64decode(text))
    (length,) = numpy.frombuffer(whole[:8], "<u8")
    about, arrays = json.loads(whole[8 : 8 + length]), whole[8 + length :]
    rows = about.pop("rows")

    def column(coded):
        if coded is None:
            return None
        if "numbers" in coded:
            numbers = numpy.frombuffer(arrays, "<f8", rows, coded["numbers"])
            return [None if number != number else number for number in numbers.tolist()]
        start, end = coded["words"]
        words = arrays[start:end].decode().split("\0")
        assert len(words) == coded["count"]
        if coded["unknown"] is not None:
            words[coded["unknown"]] = None
        if coded["codes"] is None:
            return words[:rows]
        return [words[code] for code in numpy.frombuffer(arrays, "<u4", rows, coded["codes"])]

    columns = about.pop("columns")
    lines = [text.split("\n") for coded in columns for text in column(coded["texts"])]
    assert about.pop("lines") == max(map(len, lines), default=1)
    widest = [
        max(len(line) for text in column(coded["texts"]) for line in text.split("\n")) for coded in columns if rows
    ]
    assert widest == [coded["widest"] for coded in columns if rows]
    return about | {kind: [column(coded[kind]) for coded in columns] for kind in ("texts", "keys")}
