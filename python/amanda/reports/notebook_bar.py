"""A bar below the cell of a notebook that runs: HTML's own, since rich's needs ipywidgets."""

from __future__ import annotations

import datetime
import html
import importlib
import time
from typing import Any

from amanda.driver.identity import cells


def is_notebook() -> bool:
    """True in a kernel, whose output a notebook shows. IPython on a terminal has none."""
    return hasattr(cells.shell(), "kernel")


class NotebookBar:
    """One line, which `show` draws again, and `erase` removes.

    Arguments:
        what: the work.
        total: the amount of it; None if it is not known.
        began: when the work began, by `time.monotonic`.
    """

    def __init__(self, what: str, total: float | None, began: float) -> None:
        self._total, self._began = total, began
        self._display: Any = None  # IPython's handle of what is shown

    def show(self, done: float, what: str) -> None:
        self._draw({"text/plain": f"{what} {self._numbers(done)}", "text/html": self._html(done, what)})

    def erase(self, done: float, what: str) -> None:
        if self._display is not None:
            self._draw({"text/plain": "", "text/html": ""})

    def _draw(self, shown: dict[str, str]) -> None:
        if self._display is not None:
            self._display.update(shown, raw=True)
            return
        display: Any = importlib.import_module("IPython.display")  # here: it is there, where this is called
        self._display = display.display(shown, raw=True, display_id=True)

    def _html(self, done: float, what: str) -> str:
        of = "" if self._total is None else f' value="{done:g}" max="{self._total:g}"'
        text = html.escape(f"{what} {self._numbers(done)}")
        return f'<div><progress{of} style="width: 15em"></progress> <span style="white-space: pre">{text}</span></div>'

    def _numbers(self, done: float) -> str:
        seconds = time.monotonic() - self._began
        if self._total is None:
            return f"{done:.0f}/? {_clock(seconds)}"
        left = f" {_clock(seconds * (self._total - done) / done)} left" if done else ""
        return f"{done / self._total if self._total else 1:4.0%} {done:.0f}/{self._total:.0f} {_clock(seconds)}{left}"


def _clock(seconds: float) -> str:
    return str(datetime.timedelta(seconds=max(0, round(seconds))))
