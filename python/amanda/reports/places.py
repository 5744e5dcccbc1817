"""Places: operators of a program, and how tools group their rows by them."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Literal, NamedTuple

from amanda.driver.identity import cells

if TYPE_CHECKING:
    from amanda.core.op_context import OpContext

GroupBy = Literal["id", "op", "module", "line"]


class Place(NamedTuple):
    """An operator at its place in the program; or what several have in common, the rest None and ""."""

    op_id: int | None
    name: str
    module_path: str
    source: str

    @classmethod
    def of(cls, context: OpContext) -> Place:
        """The place of the operator of this context."""
        return cls(context.op_id, context.op.name, context.module_path, context.source)

    def __str__(self) -> str:
        where = ", ".join(text for text in (self.module_path, cells.line_in_cell(self.source)) if text)
        return f"{self.name} ({where})" if where else self.name

    def group(self, by: str) -> Place:
        """The group by "id", "op", "module" or "line" to which it belongs. Its `name` is what the group stands for."""
        if by == "op":
            return Place(None, self.name, "", "")
        if by == "module":
            return Place(None, self.module_path, self.module_path, "")
        if by == "line":
            return Place(None, self.source, "", self.source)
        return self


@dataclasses.dataclass(frozen=True)
class PlaceRow:
    """The first fields of a row about one operator, or about all operators of a type, a module or a line."""

    op_id: int | None  # by "id"; else None
    name: str  # the operator, "aten::linear"; by "module" or "line" that module's path, or that line
    module_path: str  # by "id" and "module"; else ""
    source: str  # file:line of the call, by "id" and "line"; else ""

    @property
    def place(self) -> Place:
        """The same as a `Place`."""
        return Place(self.op_id, self.name, self.module_path, self.source)


PLACE_FIELDS = ("op_id", "module_path", "source")
"""Those fields of `Place` that only rows by "id" need in addition to `name`."""
