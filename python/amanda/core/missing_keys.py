"""The reason why a context has no such key, as a note of the KeyError."""

from __future__ import annotations

import reprlib
from collections.abc import Iterator, Sequence
from typing import Any

from amanda import _core
from amanda.core.tool import Tool


def note(key: object, present: Sequence[str], handle: _core.ContextHandle) -> str:
    """Names the tools that could have left the key, and says which keys there are.

    Raises:
        amanda.Error: no analysis runs.
    """
    tool = handle.tool()
    name = tool.name if isinstance(tool, Tool) else "the tool"
    builds_on = list(_dependencies(tool)) if isinstance(tool, Tool) else []
    keys = ", ".join(map(reprlib.repr, present)) or "none"
    operator = handle.op().name
    found = [f"'{each.name}', which {name} depends on, {_what_it_did(each, handle)}" for each in builds_on]
    if not found:
        found = [f"'{name}' depends on no tool; one that leaves keys for it must run first: depends_on(...)"]
    return f"[amanda] no key {key!r} on {operator}: {'; '.join(found)}. Keys here: {keys}"


def _what_it_did(tool: Tool, handle: _core.ContextHandle) -> str:
    asking: list[tuple[bool, bool]] = handle.asks(tool._core)
    if not asking:
        return f"did not see this operator: it asks for {tool._asked_text()}"
    if not handle.is_forward():
        return "left none"
    forward = [late for backward, late in asking if not backward]
    if not forward:
        return "has analyses of backward operators only"
    if all(forward) and not handle.has_outputs():
        return "is analyzed after the operator (require_outputs=True), and this analysis runs before it"
    return "left none"


def _dependencies(tool: Tool) -> Iterator[Tool]:
    """All tools on which the tool depends, each once."""
    seen: list[Any] = [tool]
    for each in seen:
        for dependency in each._dependencies:
            if dependency not in seen:
                seen.append(dependency)
    yield from seen[1:]
