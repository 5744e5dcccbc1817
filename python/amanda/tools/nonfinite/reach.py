"""Reach: what of a program's results a value that is not finite has come to."""

from __future__ import annotations

from collections.abc import Iterable

from amanda.toolkit import locks

FEW = 4  # that are named
READS = {"item", "_local_scalar_dense", "is_nonzero"}
"""Operators that give the program a number."""


class Reach:
    """By finding, as the ledger calls it. Results are gradients of leaves, parameters, and numbers that the program reads.
    Copies that are made without an operator are not seen."""

    def __init__(self) -> None:
        self._lock = locks.lock()  # guards the fields below
        self._results: dict[object, dict[str, None]] = {}
        self._in_use: set[object] = set()

    def add(self, found: object, result: str) -> None:
        """`found`: None of what belongs to no finding."""
        if found is not None:
            with self._lock:
                self._results.setdefault(found, {})[result] = None

    def end(self, living: Iterable[object]) -> None:
        """At the end of the scope. `living`: the findings whose values were in memory that is still in use."""
        with self._lock:
            self._in_use.update(living)

    def text(self, found: object) -> str:
        """A sentence, after the end of the scope."""
        with self._lock:
            results, is_in_use = [*self._results.get(found, ())], found in self._in_use
        if results:
            more = f" and {len(results) - FEW} more" if len(results) > FEW else ""
            return f"it reached {', '.join(results[:FEW])}{more}"
        nothing = "no gradient of a parameter, no parameter, and no number that the program read"
        if is_in_use:
            return f"it reached {nothing}; memory that had it was in use at the end of the scope, a result maybe"
        return f"it reached nothing: {nothing}, as far as operators show; no memory that had it was in use at the end"

    def clear(self) -> None:
        with self._lock:
            self._results.clear()
            self._in_use.clear()
