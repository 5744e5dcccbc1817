"""HTML for notebooks: tables and texts as pages have them, without scripts, in the colors of the notebook."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

TOP = 20  # rows of a table that nobody has asked for by itself
_LINE = "border-bottom: 1px solid rgb(128 128 128 / .35)"  # visible on white and on black
_BOX = "overflow-x: auto; margin: .3em 0"
_TABLE = "border-collapse: collapse; font-variant-numeric: tabular-nums"
_CAPTION = "caption-side: bottom; text-align: left; opacity: .75; white-space: pre-line"


def table(
    headings: Sequence[str],
    justified: Sequence[str],
    rows: Iterable[tuple[Sequence[str], str]],
    caption: str = "",
) -> str:
    """A table; a page that is too narrow for it scrolls.

    Arguments:
        justified: "left" or "right", per column.
        rows: the texts of each row, and the style of the row in CSS.
    """
    # "pre": names are whole, however narrow the page is.
    cells = [f"text-align: {how}; white-space: pre" for how in justified]
    heads = [f"text-align: {how}; {_LINE}; white-space: pre" for how in justified]
    lines = [f'<div style="{_BOX}"><table style="{_TABLE}">']
    if caption:
        lines.append(f'<caption style="{_CAPTION}">{html.escape(caption)}</caption>')
    lines.append(_row("th", headings, heads, ""))
    lines += [_row("td", texts, cells, style) for texts, style in rows]
    return "\n".join([*lines, "</table></div>"])


def text(content: str, style: str = "") -> str:
    """A text in lines; "" for none."""
    look = f"white-space: pre-wrap; margin: .3em 0{'; ' if style else ''}{style}"
    return f'<div style="{look}">{html.escape(content)}</div>' if content else ""


def heading(content: str) -> str:
    """A text in bold."""
    return text(content, "font-weight: bold")


def code(content: str) -> str:
    """A line of code."""
    return text(content, "font-family: monospace")


def remark(content: str) -> str:
    """A text that stands back."""
    return text(content, "opacity: .75")


def together(parts: Iterable[str]) -> str:
    """One element of these, without those that are empty."""
    return "\n".join(["<div>", *filter(None, parts), "</div>"])


def _row(tag: str, texts: Sequence[str], styles: Sequence[str], style: str) -> str:
    inside = "".join(
        f'<{tag} style="{how}">{html.escape(content)}</{tag}>' for content, how in zip(texts, styles, strict=True)
    )
    return f'<tr style="{style}">{inside}</tr>' if style else f"<tr>{inside}</tr>"
