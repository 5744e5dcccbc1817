"""Compiled functions of PyTorch, as the program's backend compiles them.

`listen_to_compiled_graphs` calls a `CompiledListener` before each run of a graph that Dynamo has made of a compiled
function, in scopes in which such functions run compiled. It gets a `CompiledGraph`: the graph, its code, the operators of
its nodes (`NodeOperator`), and the backend, which can compile other graphs.
"""

from amanda.drivers.torch_compile.front.listeners import (
    CompiledGraph,
    CompiledListener,
    NodeOperator,
    listen_to_compiled_graphs,
)

__all__ = ["CompiledGraph", "CompiledListener", "NodeOperator", "listen_to_compiled_graphs"]
