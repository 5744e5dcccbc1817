"""Site: an operator at its place in the program, or one of its backward operators, as memory is made and freed there."""

from __future__ import annotations

from typing import NamedTuple

from amanda.toolkit import Place
from amanda.toolkit.frames import short_line


class Site(NamedTuple):
    place: Place  # of the forward operator
    backward_op: str  # "AddmmBackward0"; "" for the forward operator
    user_line: str = ""  # the innermost line outside of libraries, if it was asked for

    def __str__(self) -> str:
        line = short_line(self.place.source)
        return (self.backward_op or self.place.name) + (f" ({line})" if line else "")


OUTSIDE = Site(Place(None, "(outside operators)", "", ""), "")
