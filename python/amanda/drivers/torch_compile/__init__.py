"""Compiled functions of PyTorch, instrumented as graphs: `apply(..., compiled="graph")`.

A part of the PyTorch driver, which calls it through `CompiledFunctions`. Nothing here imports torch or torch._dynamo: the
first does not have to be installed, the second takes seconds.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from amanda.driver.protocol import CoverageCounter, Origin


class CompiledFunctions:
    """See `amanda.drivers.torch.CompiledFunctions`."""

    def is_built(self) -> bool:
        from amanda.drivers.torch_compile.front import entry as front

        return front.is_built()

    def load(self) -> None:
        from amanda.drivers.torch import compiled
        from amanda.drivers.torch_compile.front import entry as front

        compiled.instrument_graphs_with(front.callback_for, front.refusal)

    def describe(self) -> str:
        from amanda.drivers.torch_compile.front import entry as front

        return front.describe()

    def make_coverage_counter(self, tools: list[int]) -> CoverageCounter:
        from amanda.drivers.torch_compile.view import coverage

        return coverage.make_counter(tools)

    def origins(self, symbol: object) -> Sequence[Origin] | None:
        module = sys.modules.get("amanda.drivers.torch_compile.places.origins")  # imported with the first graph
        found: Sequence[Origin] | None = module.origins(symbol) if module else None
        return found

    def remarks(self) -> list[str]:
        module = sys.modules.get("amanda.drivers.torch_compile.front.uninstrumented")
        lines: list[str] = module.remarks() if module else []
        return lines
