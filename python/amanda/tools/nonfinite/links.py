"""Trail: the operators through which a value that is not finite came, from the first one on."""

from __future__ import annotations

import dataclasses
import itertools
from typing import NamedTuple

from amanda.toolkit.frames import line_of_code

MOST_LINKS = 16  # of a trail; of longer ones the first and the last are kept


@dataclasses.dataclass(frozen=True)
class Link:
    """A run of an operator that made a value which is not finite, or was given one and passed it on."""

    op_id: int
    name: str  # "aten::div"; in the backward pass the forward operator's
    backward_op: str  # "DivBackward0"; "" in forward
    module_path: str
    source: str  # file:line of the forward call
    carrier: str = ""  # the operand that had it: "input self"; "" if all were finite
    held: str = ""  # what that operand was, if no operator seen here made it: "parameter 'weight'"
    result: str = ""  # "-inf at [3, :2], 2 of 40 elements"
    cause: str = ""  # see Finding
    is_mask: bool = False  # the program means it: it wrote a number that is infinite, or passed a mask on
    is_unused: bool = False  # a backward operator that got a gradient of zero where its result is not finite

    @property
    def place(self) -> str:
        """The operator, the module, the line and the phase."""
        operator = f"{self.backward_op} of {self.name}" if self.backward_op else self.name
        module = f" in {self.module_path}" if self.module_path else ""
        return f"{operator}{module} ({line_of_code(self.source)}), {'backward' if self.backward_op else 'forward'}"

    def __str__(self) -> str:
        return self.text()

    def text(self, before: str = "") -> str:
        """`before`: the result of the link before it."""
        took = f", given {self.carrier}" if self.carrier else ""
        held = f" ({self.held})" if self.held else ""
        result = "the same" if self.result == before else self.result
        return f"{self.place}{took}{held}: {'; '.join(filter(None, (result, self.cause)))}"


class Trail(NamedTuple):
    """The way of a value that is not finite."""

    links: tuple[Link, ...] = ()
    left_out: int = 0  # links in the middle
    is_mask: bool = False  # the program wrote it, and only operators that masks pass through have had it
    found: object = None  # the finding to which it belongs, as the ledger calls it

    def then(self, link: Link, *, is_mask: bool) -> Trail:
        links = (*self.links, link)
        if len(links) <= MOST_LINKS:
            return self._replace(links=links, is_mask=is_mask)
        kept = (*links[: MOST_LINKS // 2], *links[MOST_LINKS // 2 + 1 :])
        return self._replace(links=kept, left_out=self.left_out + 1, is_mask=is_mask)


def text_of(links: tuple[Link, ...], left_out: int) -> list[str]:
    """A line for each."""
    lines = [str(links[0]), *(link.text(before.result) for before, link in itertools.pairwise(links))]
    if left_out:
        lines.insert(MOST_LINKS // 2, f"... {left_out} more")
    return lines
