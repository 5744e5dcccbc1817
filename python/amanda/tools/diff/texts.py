"""Texts that identify values: a hash of a tensor's elements, the text of anything else. Equal values have equal
texts."""

from __future__ import annotations

import re
import zlib
from typing import Any

from amanda.toolkit.arrays import arrays_of

from . import values

UNREADABLE = "unreadable"
OVERWRITTEN = "overwritten"
_TENSOR = re.compile(r"tensor \w+\[[^\]]*\] [\w.+=-]+")
_NUMBER = re.compile(r"tensor \w+\[\] =(.+)")
_TELLING = 6  # digits: a number with fewer is the same as another one by chance


def text_of(value: Any, *, is_overwritten: bool = False) -> str:
    """The text of an input. `is_overwritten`: the operator does not read it."""
    if arrays_of(value) is not None or value is values.UNSHOWN:
        if is_overwritten and values.why_unreadable(value) is None:
            return f"{_described(value)} {OVERWRITTEN}"
        return text_of_array(value)
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(text_of, value))}]"
    return "generator" if type(value).__name__ == "Generator" else repr(value)


def text_of_array(array: Any, *, is_kept: bool = False) -> str:
    """ "tensor float32[2, 3] 0f1e2d3c4b5a6978": dtype, shape, hash. Numbers of a program, which frameworks wrap in
    tensors, have their value in place of the hash, "=0.5". `is_kept`: it is what `values.kept` returns."""
    reason = values.why_unreadable(array)
    if array is values.UNSHOWN:
        return f"tensor unknown[?] {UNREADABLE}-{reason}"
    return f"{_described(array)} {f'{UNREADABLE}-{reason}' if reason else _shown(array, is_kept)}"


def why_unreadable(tensor: str) -> str | None:
    """A key of `amanda.toolkit.arrays.REASONS`; None if it was read."""
    _, found, reason = tensor.rpartition(" ")[2].partition(f"{UNREADABLE}-")
    return reason if found else None


def number_in(tensor: str) -> str | None:
    """Its value, if it may be a number of the program."""
    found = _NUMBER.fullmatch(tensor)
    return found[1] if found else None


def is_telling(tensor: str) -> bool:
    """True if it is unlikely that another tensor has the same contents by chance."""
    number = number_in(tensor)
    return is_readable(tensor) and (number is None or len(number) > _TELLING)


def tensors_in(text: str) -> list[str]:
    """The texts of the tensors in it; several if it is a list."""
    return _TENSOR.findall(text)


def without_hash(tensor: str) -> str:
    """ "tensor float32[2, 3]"."""
    return tensor.rpartition(" ")[0]


def dtype_in(tensor: str) -> str:
    return tensor.removeprefix("tensor ").partition("[")[0]


def is_readable(tensor: str) -> bool:
    return why_unreadable(tensor) is None and not tensor.endswith(OVERWRITTEN)


def _described(array: Any) -> str:
    what = values.values_of(array)
    shape = what.shape_of(array)
    return f"tensor {what.dtype_of(array)}{'[?]' if shape is None else list(shape)}"


def _shown(array: Any, is_kept: bool) -> str:
    try:
        known = values.values_of(array)
        number = known.number_in(array)
        if number is not None:
            return f"={number}"
        data = known.data(array, is_kept=is_kept)
    except (RuntimeError, NotImplementedError, TypeError):
        return f"{UNREADABLE}-failed"
    half = len(data) // 2  # two checksums; a cryptographic hash takes longer than most operators
    return f"{zlib.crc32(data[:half]):08x}{zlib.crc32(data[half:]):08x}"
