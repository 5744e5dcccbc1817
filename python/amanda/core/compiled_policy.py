"""How the functions that are compiled with `torch.compile` run in one scope."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from amanda.core.tool import Tool

Compiled = Literal["auto", "eager", "graph", "opaque"]
"""The option of scopes: see `amanda.apply`."""

STRONGEST = ("eager", "graph", "auto", "yields", "opaque")
"""What scopes ask for. Of several scopes of a thread, the first of these is in force."""


def strongest(asked: Iterable[str]) -> str | None:
    """The one that is in force. A choice of another framework comes last."""
    ranks = {name: rank for rank, name in enumerate(STRONGEST)}
    return min(asked, key=lambda one: ranks.get(one, len(ranks)), default=None)


class CompiledPolicy:
    """The request of a scope: its option; or, where that is "auto", what its tools can.

    It is "auto" if all tools can work on compiled code. It is "yields" if those that can't leave it out: functions run
    eagerly unless another scope asks for them compiled. Else it is "eager".

    Attributes:
        asks_for: one of `STRONGEST`.
        why_eager: the reason why compiled functions run eagerly; empty if the program asked for it, or if they do not.
    """

    def __init__(self, option: str, tools: Iterable[Tool]) -> None:
        self.asks_for, self.why_eager = option, ""
        if option != "auto":
            return
        unable = [tool for tool in tools if tool.needs_eager]
        if unable:
            firm = [tool for tool in unable if not tool.leaves_compiled_out]
            self.asks_for = "eager" if firm else "yields"
            self.why_eager = _reason((firm or unable)[0])

    def run_eagerly(self, why: str) -> None:
        """From now on, for this reason."""
        self.asks_for, self.why_eager = "eager", why


def _reason(tool: Tool) -> str:
    return f"{tool.name} can't work on compiled code: {tool.needs_eager}"
