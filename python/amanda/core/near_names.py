"""Suggestions for a name that does not exist: "did you mean ...?", and values as messages show them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

MOST_SHOWN = 80  # characters of a value


def near(name: str, known: Iterable[str], *, most: int = 1, cutoff: float = 0.6) -> list[str]:
    """The known names that are most similar, best first; the case of letters does not count.

    A name that differs in its case only is the one that was meant: there is no other then. If known names differ in
    their case only, the first is taken.
    """
    by_folded: dict[str, str] = {}
    for one in known:
        by_folded.setdefault(one.casefold(), one)
    folded = name.casefold()
    if folded in by_folded:
        return [by_folded[folded]]
    return [by_folded[one] for one in difflib.get_close_matches(folded, by_folded, n=most, cutoff=cutoff)]


def did_you_mean(name: str, known: Iterable[str], form: str = "{!r}", *, cutoff: float = 0.6) -> str:
    """The end of a message: "; did you mean 'profile'?". Empty if no name is similar.

    Arguments:
        form: the format of a suggestion: ``"{}="`` for keywords.
    """
    meant = near(name, known, cutoff=cutoff)
    return f"; did you mean {form.format(meant[0])}?" if meant else ""


def shown(value: object) -> str:
    """A value as text of one line: a model that prints as many lines is named by its type."""
    text = repr(value)
    return text if len(text) <= MOST_SHOWN and "\n" not in text else f"an object of type {type(value).__name__}"
