"""Checks of arguments that tools have in common."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any


def whole_number(value: Any, complaint: str, least: int = 0) -> int:
    """Returns an integer of any kind, such as numpy's.

    Raises:
        TypeError: it is none; `complaint` is the text.
        ValueError: it is less than `least`.
    """
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(complaint) from None
    if number < least:
        raise ValueError(complaint)
    return number


def check_choice(argument: str, value: object, known: Sequence[str]) -> None:
    """Raises `ValueError` if the value is none of these. `argument`: "[profile] by="."""
    if value not in known:
        *others, last = [f'"{name}"' for name in known]
        listed = f"{', '.join(others)} or {last}" if others else last
        raise ValueError(f"{argument} is {listed}, got {value!r}")
