"""Unshown: what a driver does not show to tools. It runs as without a scope, after one warning."""

from __future__ import annotations

import logging

from amanda.core import fork, scope


class Unshown:
    """The calls of one framework that tools did not see in this process, as texts.

    Arguments:
        speaker: who speaks in log lines: "tensorflow".
        framework: its name in `amanda doctor`.
    """

    def __init__(self, speaker: str, framework: str) -> None:
        self._speaker, self._framework = speaker, framework
        self._told: list[str] = []
        self._lock = fork.rlock()  # guards the field above

    def warn(self, text: str) -> None:
        """Notes it for the evidence of tools, and says it once in a process."""
        scope.note_unseen("unsupported", text)
        with self._lock:
            if text in self._told:
                return
            self._told.append(text)
        logging.getLogger("amanda").warning("[%s] %s", self._speaker, text)

    def remarks(self) -> list[str]:
        """For `Driver.remarks`."""
        if not self._told:
            return []
        return [f"what tools were not shown of {self._framework}:", *(f"  {text}" for text in self._told)]
