"""MemorySnapshot: what was in memory at one moment."""

from __future__ import annotations

from collections.abc import Sequence

from amanda.toolkit.tables import Results

from .rows import GROUPINGS, GroupBy, Held, Row, rows_of


class MemorySnapshot(Results[Row, GroupBy]):
    """The memory in use at one moment. Rows are by "kind" (the default), "id", "op", "module" or "line", largest first;
    see `amanda.toolkit.Results` for `rows`, `table` and `to_pandas`.

    Attributes:
        when: the event at that moment.
    """

    _speaker = "memory"
    _groupings = GROUPINGS

    def __init__(self, held: Sequence[Held], when: str) -> None:
        self._held, self.when = list(held), when

    def reset(self) -> None:
        """Forgets all."""
        self._held = []

    def _rows(self, by: GroupBy) -> list[Row]:
        return rows_of(self._held, by)

    def _remarks(self, by: GroupBy) -> list[str]:
        return [self.when]
