"""Why an operator of a compiled program cannot be replaced, or an operand not be edited."""

from __future__ import annotations

from amanda.drivers.torch_compile.calls import Call


class Refusal:
    """See `refuse` of amanda._core.OpSite."""

    def __init__(self, call: Call, is_backward: bool) -> None:
        self._call, self._is_backward = call, is_backward

    def __call__(self, point: str, position: int) -> str | None:
        return None
