"""Keywords that a function of Amanda does not take: the error says which was meant."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

from amanda.core.near_names import did_you_mean


def check(where: str, given: Iterable[str], function: Callable[..., Any]) -> None:
    """Refuses the first keyword that the function does not take.

    Raises:
        TypeError: there is one.
    """
    for name in given:
        parameters = inspect.signature(function).parameters
        if name not in parameters and not any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
            refuse(where, name, function)


def refuse(where: str, given: str, *functions: Callable[..., Any]) -> NoReturn:
    """Refuses a keyword. `functions`: they have the keywords that there are.

    Raises:
        TypeError: always.
    """
    known = [option for function in functions for option in options(function)]
    meant = did_you_mean(given, known, "{}=", cutoff=0.5 if len(given) < 4 else 0.65)
    raise TypeError(f"{where} has no option {given}={meant or '; its options are ' + ', '.join(known)}")


def options(function: Callable[..., Any]) -> list[str]:
    """The parameters of a function that can be given by keyword."""
    by_keyword = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    named = inspect.signature(function).parameters.values()
    return [one.name for one in named if one.kind in by_keyword and one.name != "self"]
