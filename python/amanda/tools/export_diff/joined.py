"""Joined: the operators of the program, and of its .pt2 file, that compute a value of the file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from .alignment import Matched
from .arrays import Kept
from .calls import Call
from .graphs import Exported, Program
from .results import Cover


class Joined(NamedTuple):
    """Operators that compute a value from the nearest values of other rows."""

    program: tuple[str, ...] = ()  # operators
    flops: int | None = None  # None if they are not counted
    exported: tuple[str, ...] = ()  # operators
    positions: tuple[int, ...] = ()  # of the program's operators in the call


class Join:
    """The values of the file in a call.

    Arguments:
        matched: the values that operators of the program have made, by name.
        references: those of all rows.
        exported: the program of torch.export.
    """

    def __init__(
        self,
        call: Call,
        matched: Mapping[str, Matched],
        references: Mapping[str, Kept],
        exported: Exported | None,
    ) -> None:
        program = Program(call)
        names = {
            value: program.value_of(matched[value].ran, kept) if value in matched else program.last(kept)
            for value, kept in references.items()
        }
        self._program, self._flops = _between(program.graph, names), program.flops
        self.flops = total(program.flops)  # of the call
        self.uncounted = sorted({ran.place.name for ran in call.ran if ran.flops is None})
        self._exported: dict[str, tuple[int, ...]] = {}
        self.exported_unmatched = 0  # operators of the .pt2 file that no operator of the program was found for
        if exported is not None:
            self._graph = exported.graph
            found = exported.alignment(call).matched()
            theirs = {(id(each.ran), id(each.reference)): each.result.name for each in found}
            both = {value: theirs.get((id(each.ran), id(each.reference))) for value, each in matched.items()}
            self._exported = _between(exported.graph, both)
            self.exported_unmatched = exported.operators - len({each.result.origin.name for each in found})
        self._types = [node.op_type for node in program.graph.node]

    def of(self, value: str) -> Joined:
        """The operators that compute a value."""
        ran = self._program.get(value, ())
        return Joined(
            tuple(self._types[i] for i in ran),
            total(self._flops[i] for i in ran),
            tuple(self._graph.node[i].op_type for i in self._exported.get(value, ())),
            ran,
        )


def total(counts: Iterable[int | None]) -> int | None:
    """The sum; None if one of them is not known."""
    found = list(counts)
    return None if None in found else sum(each for each in found if each is not None)


def _between(graph: object, names: Mapping[str, str | None]) -> dict[str, tuple[int, ...]]:
    """The positions of the operators between the values with these names, by the file's names."""
    cover, ends = Cover(graph), {name for name in names.values() if name is not None}
    return {value: tuple(cover.between(name, ends)) for value, name in names.items() if name is not None}
