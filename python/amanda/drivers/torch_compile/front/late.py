"""Compiling a graph after Dynamo has compiled the frame that it is of: for other tools, or another instance."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from amanda.drivers.torch_compile import port
from amanda.drivers.torch_compile.program import copies, fakes


class Inputs:
    """The symbols that Dynamo has made for a graph's inputs: with them, sizes that it left open stay open."""

    def __init__(self, gm: Any) -> None:
        self._symbols = [node.meta["example_value"] for node in gm.graph.nodes if node.op == "placeholder"]
        self.fake_mode = fakes.mode_of(self._symbols)

    def compiling(self, build: Callable[..., Any], *args: Any) -> Any:
        """Calls it as Dynamo calls a backend."""
        with port.disable_current_modes(), port.metrics(), port.tracing(port.TracingContext(self.fake_mode)):
            return port.preserve_global_state(build)(*args)

    def compile(self, backend: Any, gm: Any, args: Sequence[Any], extra: Sequence[Any]) -> Callable[..., Any]:
        """The result of the program's backend for a graph with these inputs."""
        if self.fake_mode is None:
            return backend(gm, [*args, *extra])  # type: ignore[no-any-return]
        inputs = [*self._symbols, *(self.fake_mode.from_tensor(value, static_shapes=True) for value in extra)]
        shapes = self.fake_mode.shape_env
        if shapes is None:
            return backend(gm, inputs)  # type: ignore[no-any-return]
        known, uncompiled = len(shapes.guards), copies.copy_of(gm)
        compiled: Callable[..., Any] = backend(gm, inputs)
        if len(shapes.guards) == known:
            return compiled
        # Dynamo has made its guards, and would not check these.
        holds = shapes.produce_guards_expression(inputs, guards=shapes.guards[known:], ignore_static=False)

        def run(*args: Any) -> Any:
            fits = holds is None or shapes.evaluate_guards_expression(holds, args)
            return (compiled if fits else uncompiled)(*args)

        return run
