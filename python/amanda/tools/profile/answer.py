"""The answer of a Profile: which line, and what in it, the time of operators goes to."""

from __future__ import annotations

from collections.abc import Sequence

from amanda.toolkit.answers import code_of, main_part, percent, seconds
from amanda.toolkit.frames import is_library, line_of_code

from .rows import Row, sum_of

MOST = 0.5  # of all time: one line that holds so much is looked into
MOST_LINES = 3


def answer_of(lines: Sequence[Row], inside: Sequence[Row], inside_lines: Sequence[Row]) -> str:
    """
    Arguments:
        lines: by "user_line".
        inside: by "id", of the operators that the first of these lines called, in whatever module.
        inside_lines: the same by "line".
    """
    if not lines:
        return "no operator was seen"
    total = sum_of(lines)
    backward = f", {percent(total.backward_ns / total.total_ns)} of it backward" if total.backward_ns else ""
    head = f"operators took {seconds(total.total_ns / 1e9)}{backward}"
    if lines[0].share < MOST:
        most = [f"{percent(row.share)} in {line_of_code(row.name) or 'no line'}" for row in lines[:MOST_LINES]]
        return f"{head}: {', '.join(most)}"
    first = lines[0]
    code = code_of(first.name)
    where = f"{percent(first.share)} in {line_of_code(first.name) or 'no line'}{f', {code}' if code else ''}"
    return f"{head}: {where}{_what_inside(first, inside, inside_lines)}"


def _what_inside(first: Row, inside: Sequence[Row], inside_lines: Sequence[Row]) -> str:
    parts = []
    module, share = main_part([(row.module_path, row.total_ns) for row in inside])
    if module:
        parts.append(
            f"{percent(share)} of it in modules {module}" if "*" in module else f"{percent(share)} in {module}"
        )
    hottest = inside_lines[0] if inside_lines else first
    if hottest.name != first.name and is_library(hottest.name):
        share = hottest.total_ns / first.total_ns if first.total_ns else 0.0
        parts.append(f"{percent(share)} of it at {line_of_code(hottest.name)}")
    return f"; {', '.join(parts)}" if parts else ""
