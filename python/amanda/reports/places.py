"""Places: operators of a program, and how tools group their rows by them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

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

    def group(self, by: str) -> Place:
        """The group by "id", "op", "module" or "line" to which it belongs. Its `name` is what the group stands for."""
        if by == "op":
            return Place(None, self.name, "", "")
        if by == "module":
            return Place(None, self.module_path, self.module_path, "")
        if by == "line":
            return Place(None, self.source, "", self.source)
        return self


PLACE_FIELDS = ("op_id", "module_path", "source")
"""Those fields of `Place` that only rows by "id" need in addition to `name`."""
