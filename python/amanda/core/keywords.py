"""Keywords that a function of Amanda does not take: the error says which was meant."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NoReturn

from amanda.core.near_names import did_you_mean


def refuse(where: str, given: str, function: Callable[..., Any]) -> NoReturn:
    """Refuses a keyword. `function`: it has the keywords that there are.

    Raises:
        TypeError: always.
    """
    known = options(function)
    meant = did_you_mean(given, known, "{}=", cutoff=0.5)
    raise TypeError(f"{where} has no option {given}={meant or '; its options are ' + ', '.join(known)}")


def options(function: Callable[..., Any]) -> list[str]:
    """The parameters of a function that can be given by keyword."""
    by_keyword = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    named = inspect.signature(function).parameters.values()
    return [one.name for one in named if one.kind in by_keyword and one.name != "self"]
