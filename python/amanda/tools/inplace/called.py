"""Called: a place in a library, and the line of the program that called it."""

from __future__ import annotations

from amanda import OpContext
from amanda.toolkit import Place
from amanda.toolkit.frames import line_of_code, user_line


class Called(Place):
    """The place of an operator in a library. It is equal to a `Place`: the caller is for the text alone."""

    line: str  #: of the program, as file:line


def place_of(context: OpContext) -> Place:
    """The place of an operator that is analyzed, forward; a `Called` if a library calls it for a line of the program."""
    place, line = Place.of(context), user_line(context)
    if line in ("", place.source):
        return place
    called = Called(*place)
    called.line = line
    return called


def at(place: Place) -> str:
    """ "aten::add_ in encoder (model.py:12)"; "aten::cat (cache.py:9, called at model.py:12)"."""
    module = f" in {place.module_path}" if place.module_path else ""
    called = f", called at {line_of_code(place.line)}" if isinstance(place, Called) else ""
    return f"{place.name}{module}" + (f" ({line_of_code(place.source)}{called})" if place.source else "")
