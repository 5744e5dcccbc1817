"""What compiled functions have taken in from a tool."""

from __future__ import annotations

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
        """The tool has changed: such functions are compiled again when they run next, and analyzed again before."""
        with self._lock:
            actions, self._actions = self._actions, []
        for action in actions:
            action.remove()
