"""PyTorch, with programs that `torch.compile` compiled."""

from __future__ import annotations

import collections
import functools
import importlib.util
import threading
from collections.abc import Callable
from typing import Any

import amanda
import torch_values
from adapter import Capabilities, NotInstalled
from description import Program
from torch_values import PyTorch, torch

if importlib.util.find_spec("amanda._torch_compile") is None:
    raise NotInstalled("amanda's driver for compiled programs in this build")


class Model(torch_values.Model):
    def __init__(self, program: Program, beside: torch_values.Model | None = None) -> None:
        super().__init__(program, beside)
        self.compiled: list[tuple[int, str]] = []
        torch._dynamo.reset()  # all programs have their code in common, and a code is compiled a limited number of times
        self.call = torch.compile(self.module, backend=self._backend)

    def builds(self) -> int:
        """All graphs but the vanilla one. Threads compile the same at once: Dynamo does not wait for another's graph."""
        each = collections.Counter(thread for thread, _ in self.compiled)
        return max([0, *(count - 1 for count in each.values()), len({code for _, code in self.compiled}) - 1])

    def _backend(self, graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        self.compiled.append((threading.get_ident(), graph.code))
        return torch._dynamo.lookup_backend("aot_eager")(graph, inputs)


class TorchCompile(PyTorch):
    name = f"pytorch/{PyTorch.minor}/compile"
    capabilities = Capabilities(backward="one", symbolic=True, both_sides=True)
    same_ids_as = f"pytorch/{PyTorch.minor}/eager"

    apply = staticmethod(functools.partial(amanda.apply, compiled="graph"))
    build = staticmethod(Model)


ADAPTER = TorchCompile()
