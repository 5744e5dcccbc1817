"""Compiling a graph after Dynamo has compiled the frame that it is of: for other tools, or another instance."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from amanda.drivers.torch_compile import port


class Inputs:
    """The symbols that Dynamo has made for a graph's inputs: with them, sizes that it left open stay open."""

    def __init__(self, gm: Any) -> None:
        self._symbols = [node.meta["example_value"] for node in gm.graph.nodes if node.op == "placeholder"]
        modes = (symbol.fake_mode for symbol in self._symbols if isinstance(symbol, port.FakeTensor))
        self.fake_mode = next(modes, None)

    def compiling(self, build: Callable[..., Any], *args: Any) -> Any:
        """Calls it as Dynamo calls a backend."""
        with port.disable_current_modes(), port.metrics(), port.tracing(port.TracingContext(self.fake_mode)):
            return port.preserve_global_state(build)(*args)

    def of(self, args: Sequence[Any], extra: Sequence[Any]) -> list[Any]:
        if self.fake_mode is None:
            return [*args, *extra]
        return [*self._symbols, *(self.fake_mode.from_tensor(value, static_shapes=True) for value in extra)]

