"""A file of arrays in the format of safetensors: of any framework, one array read at a time, checked when it is opened.

Without memory mapping: a mapped file that somebody cuts ends the process by a signal.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

from . import values

_CODES = {
    **{"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "complex64": "C64", "bool": "BOOL"},
    **{"int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8", "uint8": "U8"},
    **{"uint64": "U64", "uint32": "U32", "uint16": "U16", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2"},
}
_NAMES = {code: name for name, code in _CODES.items()}
_BITS = {"BOOL": 8, "BF16": 16, "F8_E4M3": 8, "F8_E5M2": 8}  # else the code's number
_LENGTH = 8  # bytes, of the header's length
_ALIGNMENT = 8
_FRAMEWORK = "framework"


class _Entry(NamedTuple):
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


def write(path: Path, arrays: Mapping[str, Any], framework: str) -> int:
    """Writes arrays by name, as a whole or not at all. Returns the checksum of the header.

    Arguments:
        arrays: as `values.kept` makes them.
        framework: as `values.framework_of` names it.

    Raises:
        OSError: it cannot be written: the disk is full, for instance.
    """
    entries, end = {}, 0
    for name, array in arrays.items():
        code, shape = _CODES[values.values_of(array).dtype_of(array)], list(array.shape)
        start, end = end, end + _size(code, shape)
        what = {"dtype": code, "shape": shape}
        entries[name] = what | {"data_offsets": [start, end]}
    text = json.dumps({"__metadata__": {_FRAMEWORK: framework}, **entries}).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    head = len(text).to_bytes(_LENGTH, "little") + text
    partial = path.with_suffix(".partial")
    try:
        with open(partial, "wb") as file:
            file.write(head)
            for array in arrays.values():
                file.write(values.values_of(array).data(array, is_kept=True))
        partial.replace(path)
    except OSError as error:
        raise OSError(f"[diff] can't write {str(path)!r}: {error}; what was written before can be read") from error
    finally:
        partial.unlink(missing_ok=True)
    return zlib.crc32(head)


class TensorFile:
    """Reads one.

    Raises:
        ValueError: it is damaged; the text says how.
        OSError: it cannot be read.
    """

    def __init__(self, path: Path, checksum: int) -> None:
        self._path = path
        with open(path, "rb") as file:
            head = file.read(_LENGTH)
            length = int.from_bytes(head, "little")
            size = file.seek(0, 2)
            if len(head) < _LENGTH or _LENGTH + length > size:
                raise ValueError("it is cut short")
            file.seek(_LENGTH)
            head += file.read(length)
        if zlib.crc32(head) != checksum:
            raise ValueError("its header is damaged")
        self._start = len(head)
        self._entries, self._framework = _entries(head[_LENGTH:])
        expected = self._start + max((entry.end for entry in self._entries.values()), default=0)
        if size != expected:
            raise ValueError(f"it has {size:,} bytes instead of {expected:,}")

    @property
    def names(self) -> set[str]:
        return set(self._entries)

    def read(self, name: str) -> Any:
        """An array of the framework that wrote it. Raises as the class does."""
        entry = self._entries[name]
        with open(self._path, "rb") as file:
            file.seek(self._start + entry.start)
            data = _read(file, entry.end - entry.start)
        return values.made(self._framework, data, entry.dtype, entry.shape)


def _entries(text: bytes) -> tuple[dict[str, _Entry], str]:
    try:
        given = json.loads(text)
        framework = given.pop("__metadata__")[_FRAMEWORK]
        found = {
            name: _Entry(_NAMES[what["dtype"]], tuple(what["shape"]), *what["data_offsets"])
            for name, what in given.items()
        }
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ValueError("its header is something else") from None
    for entry in found.values():
        if entry.end - entry.start != _size(_CODES[entry.dtype], entry.shape):
            raise ValueError("its header is something else")
    return found, framework


def _size(code: str, shape: Sequence[int]) -> int:
    """The size of an array, in bytes."""
    return math.prod(shape) * _BITS.get(code, int(code[1:]) if code[1:].isdigit() else 0) // 8


def _read(file: IO[bytes], size: int) -> bytearray:
    data = bytearray(size)
    if file.readinto(data) != size:  # type: ignore[attr-defined]
        raise ValueError("it is cut short")
    return data
