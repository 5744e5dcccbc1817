"""The index of a record: lines of JSON. After the head, each is a checksum and the content."""

from __future__ import annotations

import json
import re
import zlib
from typing import Any

NAME = "index.jsonl"
VERSION = 4

_HEAD = "amanda diff record"
_LINE = re.compile(rb'\["([0-9a-f]{8})", (.*)\]\n', re.DOTALL)


def head() -> str:
    return json.dumps([_HEAD, VERSION]) + "\n"


def line(content: Any) -> str:
    text = json.dumps(content)
    return f'["{zlib.crc32(text.encode()):08x}", {text}]\n'


def check_head(text: bytes) -> None:
    """Raises `ValueError`: it is the head of something else, or of another version."""
    try:
        match json.loads(text):
            case [str(name), int(version)] if name == _HEAD:
                found = version
            case _:
                raise ValueError
    except ValueError:
        raise ValueError(f"is no record: its {NAME} is something else; make one with amanda diff --record") from None
    if found != VERSION:
        raise ValueError(f"is a record of version {found}, and this Amanda reads version {VERSION}; record it again")


def content(line: bytes) -> Any:
    """Raises `ValueError`: the line is damaged."""
    found = _LINE.fullmatch(line)
    if found is None or int(found[1], 16) != zlib.crc32(found[2]):
        raise ValueError("its checksum is another one")
    return json.loads(found[2])
