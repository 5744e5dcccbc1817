"""Listeners to the graphs of compiled functions. This module imports no torch."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from amanda.core import fork


@dataclasses.dataclass(frozen=True)
class NodeOperator:
    """An operator that a node of a graph calls: its name such as "aten::linear", its module, and file:line."""

    name: str
    module_path: str
    source: str


class CompiledGraph(Protocol):
    """A graph that Dynamo has made of a part of a compiled function, and its code."""

    graph: Any
    """The torch.fx.GraphModule. Its inputs are tensors and numbers, its result is a tuple. It must not be changed."""
    function: str
    """The compiled function, as "module.name (file:line)"."""
    backend: str
    """The name of the program's backend, such as "inductor"."""
    run: Callable[..., Any]
    """Its compiled code without taps, as the program would run it. It takes the inputs of the graph."""

    @property
    def has_options(self) -> bool:
        """True if its backend is inductor, whose options `compiled` takes."""

    @property
    def has_cuda_graphs(self) -> bool:
        """True if its code may run as a CUDA graph: each run on a GPU then writes over the results of earlier ones."""

    def compiled(
        self, graph: Any, inputs: Sequence[Any], options: Mapping[str, Any] | None = None
    ) -> Callable[..., Any]:
        """Another graph, compiled by the program's backend for these tensors. The backend may change `graph`.

        Arguments:
            options: of inductor, as `torch.compile` takes them, in addition to the program's own.
        """

    def compiled_by(self, name: str, graph: Any, inputs: Sequence[Any]) -> Callable[..., Any]:
        """The same with one of the compiler's own backends, such as "aot_eager"."""

    def generated_code(self) -> contextlib.AbstractContextManager[list[str]]:
        """A context in which inductor compiles; the list gets the source code that it generates. With the option
        ``fx_graph_cache=False`` it generates all anew."""

    def operators(self, node: Any, inputs: Sequence[Any]) -> list[NodeOperator]:
        """The operators of a node of `graph`, as eager mode shows them.

        Arguments:
            inputs: those of the graph, with which it runs.
        """


class CompiledListener(Protocol):
    """The argument of `listen_to_compiled_graphs`."""

    def before_run(self, graph: CompiledGraph, inputs: Sequence[Any]) -> None:
        """A graph is about to run in a scope of this thread, on these inputs, which must not be changed. It must not
        raise. The program's dispatch modes are off, and random numbers that it draws are missing in the program."""


_lock = fork.rlock()
_listeners: tuple[CompiledListener, ...] = ()  # replaced as a whole


def listen_to_compiled_graphs(listener: CompiledListener) -> Callable[[], None]:
    """Calls the listener before each run of a graph of a function compiled with torch.compile, in scopes in which such
    functions run compiled. Returns a function that ends this."""
    global _listeners
    with _lock:
        _listeners = (*_listeners, listener)

    def end() -> None:
        global _listeners
        with _lock:
            _listeners = tuple(one for one in _listeners if one is not listener)

    return end


def is_listening() -> bool:
    return bool(_listeners)


def tell(graph: CompiledGraph, inputs: Sequence[Any]) -> None:
    for listener in _listeners:
        listener.before_run(graph, inputs)
