"""Errors of backward passes that somebody can explain: a tensor that a node had saved was written to since, or is freed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

OVERWRITTEN = "modified by an inplace operation"
FREED = "backward through the graph a second time"
"""The parts of PyTorch's errors that say which they are."""
OVERWRITTEN_NOTE = "[inplace] "
"""How the notes begin that explain it."""

Explain = Callable[[RuntimeError, Sequence[Any]], str]
"""Called with the error and the tensors, or edges, where the backward pass began. The graph is still there. Returns the
text of a note; "" if it knows nothing of this pass."""

_explainers: list[Explain] = []
_hint: Callable[[], str]


def use(hint: Callable[[], str]) -> None:
    """Sets what says how to learn more, for errors that nobody is asked about."""
    global _hint
    _hint = hint


@contextlib.contextmanager
def explained_by(explain: Explain) -> Iterator[None]:
    """A context in which `explain` is asked about these errors, of backward passes on any thread. The note is that of the
    innermost one; where nobody is asked, it is how to learn more."""
    _explainers.append(explain)
    try:
        yield
    finally:
        _explainers.remove(explain)


def add_note(error: RuntimeError, began: Sequence[Any]) -> None:
    """Adds what is known, once: a pass inside of another one raises the same error in both."""
    told = str(error)
    if (OVERWRITTEN not in told and FREED not in told) or is_explained(error):
        return
    try:
        texts = [explain(error, began) for explain in reversed(_explainers)]
    except Exception as failure:  # the program's error is the one to see
        texts = [f"what wrote cannot be found: {failure!r}"]
    if any(texts):
        error.add_note(f"{OVERWRITTEN_NOTE}{next(filter(None, texts))}")
    elif not texts and OVERWRITTEN in told:
        error.add_note(f"{OVERWRITTEN_NOTE}{_hint()}")


def is_explained(error: BaseException) -> bool:
    """True if the error has such a note."""
    return any(str(note).startswith(OVERWRITTEN_NOTE) for note in getattr(error, "__notes__", ()))
