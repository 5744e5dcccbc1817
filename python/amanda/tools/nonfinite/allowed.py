"""Allowed: the operators that may produce a NaN."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Iterable

from amanda import OpContext


class Allowed:
    """Lists of wildcards, as `NaNSentinel` takes them.

    Raises:
        TypeError: one is no list of strings.
    """

    def __init__(self, *, ops: Iterable[str], modules: Iterable[str], lines: Iterable[str]) -> None:
        self._ops = _patterns("allow_ops", ops)
        self._modules = _patterns("allow_modules", modules)
        self._lines = _patterns("allow_lines", lines)

    def has(self, context: OpContext) -> bool:
        """True if one of the lists has this operator."""
        name = context.op.name  # "aten::div.Tensor"
        plain = name.partition("::")[2]
        path = context.module_path.split(".")
        file, _, line = context.source.rpartition(":")
        return (
            _any({name, name.partition(".")[0], plain, plain.partition(".")[0]}, self._ops)
            or _any({".".join(path[: end + 1]) for end in range(len(path))}, self._modules)
            or _any({context.source, file, os.path.basename(file), f"{os.path.basename(file)}:{line}"}, self._lines)
        )


def _any(names: Iterable[str], patterns: Iterable[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for name in names for pattern in patterns)


def _patterns(name: str, given: Iterable[str]) -> list[str]:
    patterns = [] if isinstance(given, str) else list(given)
    if isinstance(given, str) or not all(isinstance(pattern, str) for pattern in patterns):
        raise TypeError(f"[nan] {name}= is a list of strings, got {given!r}")
    return patterns
