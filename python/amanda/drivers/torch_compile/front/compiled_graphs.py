"""The graphs of compiled functions, for those who listen to them."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from amanda.drivers.torch_compile import port
from amanda.drivers.torch_compile.front.listeners import NodeOperator
from amanda.drivers.torch_compile.places.instances import Instance
from amanda.drivers.torch_compile.places.places import Places
from amanda.drivers.torch_compile.program.shared_program import SharedProgram


class Graph:
    """See `listeners.CompiledGraph`. `instance`: the one that runs."""

    instance: Instance

    def __init__(self, graph: Any, function: str, backend: Backend, run: Callable[..., Any]) -> None:
        self.graph, self.function, self.run = graph, function, run
        self.backend, self._backend = backend.name, backend
        self._operators: dict[Any, list[NodeOperator]] | None = None

    @property
    def has_options(self) -> bool:
        return self._backend.is_inductor

    @property
    def has_cuda_graphs(self) -> bool:
        return self._backend.is_inductor and self._backend.has_cuda_graphs

    def compiled(
        self, graph: Any, inputs: Sequence[Any], options: Mapping[str, Any] | None = None
    ) -> Callable[..., Any]:
        return _compiled(self._backend.with_options(options or {}), graph, inputs)

    def compiled_by(self, name: str, graph: Any, inputs: Sequence[Any]) -> Callable[..., Any]:
        return _compiled(port.lookup_backend(name), graph, inputs)

    @contextlib.contextmanager
    def generated_code(self) -> Iterator[list[str]]:
        with port.inductor_code() as found:
            yield found

    def operators(self, node: Any, inputs: Sequence[Any]) -> list[NodeOperator]:
        if self._operators is None:
            self._operators = self._found(inputs)
        return self._operators.get(node, [])

    def _found(self, inputs: Sequence[Any]) -> dict[Any, list[NodeOperator]]:
        found: dict[Any, list[NodeOperator]] = {}
        with port.without_saved_tensor_hooks():
            shared = SharedProgram(self.graph, inputs)
            with shared.on(inputs) as program:
                places = Places(self.instance)
                for call in program.calls:
                    place = places.place_of(call)
                    found.setdefault(call.node, []).append(NodeOperator(call.name, place.module_path, place.source))
        return found


class Backend:
    """The backend of a compiled function."""

    def __init__(self, function: Callable[..., Any], name: str) -> None:
        self.function, self.name = function, name
        self.is_inductor = name == "inductor"

    @property
    def has_cuda_graphs(self) -> bool:
        return bool(self._own().get("triton.cudagraphs", port.inductor_has_cuda_graphs()))

    def with_options(self, options: Mapping[str, Any]) -> Callable[..., Any]:
        if not options:
            return self.function
        return functools.partial(port.lookup_backend("inductor"), config_patches={**self._own(), **options})

    def _own(self) -> Mapping[str, Any]:
        """The options that torch.compile was given."""
        found: Mapping[str, Any] = getattr(port.innermost_backend(self.function), "config", {})
        return found


def _compiled(backend: Callable[..., Any], graph: Any, inputs: Sequence[Any]) -> Callable[..., Any]:
    with port.compile_lock, port.disable_current_modes(), port.metrics(), port.tracing(None):
        made: Callable[..., Any] = port.preserve_global_state(backend)(graph, list(inputs))
        return made
