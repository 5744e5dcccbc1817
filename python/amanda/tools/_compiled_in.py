"""What compiled functions have taken in from a tool."""

from __future__ import annotations

import logging

from amanda import _core, _fork


class CompiledIn:
    """Traceable actions: their routines became parts of compiled functions, as the tool was then."""

    def __init__(self) -> None:
        self._actions: list[_core.Action] = []
        self._lock = _fork.lock()

    def add(self, action: _core.Action) -> None:
        with self._lock:
            self._actions.append(action)

    def renew(self) -> None:
        """The tool has changed. Analyses run once in a scope, so functions keep what they have taken in."""
        with self._lock:
            actions, self._actions = self._actions, []
        if actions:
            logging.getLogger("amanda").warning(
                "[tools] compiled functions keep the masks and ranges that they were compiled with in this scope; call "
                "cache_clear() of the scope, or apply the tool again"
            )
