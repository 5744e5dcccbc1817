"""Ranks: whether there are several, and notes that they leave for each other."""

from __future__ import annotations

import collections
import json
import sys
from typing import Any

_boards: collections.Counter[str] = (
    collections.Counter()
)  # so that scopes that follow each other have notes of their own
_LEAST_DIFFERENCE = 1e-5  # of norms, relative: replicas of one device type are equal to the bit


def several() -> bool:
    """The program has a group of several processes."""
    distributed = sys.modules.get("torch.distributed")
    return distributed is not None and bool(
        distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1
    )


class Board:
    """Notes of all ranks, in the store by which they have met. Nobody waits, and there is no collective: a rank reads what
    is there."""

    def __init__(self, name: str) -> None:
        _boards[name] += 1
        self._name = f"amanda/check/{name}/{_boards[name]}"
        self._unread: dict[str, tuple[dict[str, Any], set[int]]] = {}  # own notes, and the ranks that have not answered

    def put(self, key: str, note: dict[str, Any]) -> None:
        import torch.distributed

        store = _store()
        if store is not None:
            own = torch.distributed.get_rank()
            self._unread[key] = note, set(range(torch.distributed.get_world_size())) - {own}
            store.set(f"{self._name}/{key}/{own}", json.dumps(note))

    def answered(self) -> list[tuple[str, dict[str, Any], int, dict[str, Any]]]:
        """Answers to notes of this rank, each once: the key, the own note, the other rank, its note."""
        import torch.distributed

        store, found = _store(), []
        count = torch.distributed.get_world_size()
        for key, (note, missing) in self._unread.items() if store is not None else ():
            for rank in [one for one in missing if one < count and store.check([f"{self._name}/{key}/{one}"])]:
                found.append((key, note, rank, json.loads(store.get(f"{self._name}/{key}/{rank}"))))
                missing.discard(rank)
        self._unread = {key: one for key, one in self._unread.items() if one[1]}
        return found

    @property
    def waits(self) -> bool:
        """Other ranks have not noted anything yet under a key of this rank."""
        return bool(self._unread)


def _store() -> Any:
    """None if there is no group any more."""
    import torch.distributed

    get = getattr(torch.distributed.distributed_c10d, "_get_default_store", None)
    try:
        return get() if get is not None else None
    except (RuntimeError, ValueError):
        return None


def differs(one: float, other: float) -> bool:
    """Two norms are not those of equal tensors."""
    return abs(one - other) > _LEAST_DIFFERENCE * max(abs(one), abs(other))  # False for NaN, of both or of one
