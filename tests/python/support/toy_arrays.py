"""A graph framework of arrays in Python, forward only, and its driver, which brings words of its own."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from amanda import _core
from amanda.driver.protocol import Access, VariableValue
from amanda.driver.vocabulary import Vocabulary

BACKEND = _core.GraphBackend("tiny/1/graph", backward="one", both_sides=True)
DENSE = BACKEND.intern("tiny", "dense", inputs=["signal", "kernel"], outputs=["result"])
RECTIFY = BACKEND.intern("tiny", "rectify", inputs=["signal"], outputs=["result"])


@dataclasses.dataclass(frozen=True)
class Symbol:
    name: str
    shape: tuple[int, ...]
    is_variable: bool = False


class Node(NamedTuple):
    type: int
    inputs: tuple[Symbol, ...]
    output: Symbol
    run: Callable[..., Any]


def _describe(operand: object) -> dict[str, Any] | None:
    if not isinstance(operand, np.ndarray | Symbol):
        return None
    return {"dtype": "float32", "sizes": list(operand.shape), "bytes": 4 * math.prod(operand.shape)}


def _parameter_name(symbol: object) -> str | None:
    return symbol.name if isinstance(symbol, Symbol) and symbol.is_variable else None


BACKEND.describe(_describe)
BACKEND.name_parameters(_parameter_name)


class Dense:
    """rectify(x @ kernel.T)"""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        x, weight = Symbol("x", (3, kernel.shape[1])), Symbol("kernel", kernel.shape, is_variable=True)
        product, result = (Symbol(name, (3, kernel.shape[0])) for name in ("product", "result"))
        self.nodes = [
            Node(DENSE, (x, weight), product, lambda x, kernel: x @ kernel.T),
            Node(RECTIFY, (product,), result, lambda x: np.maximum(x, 0)),
        ]
        self.sites: list[Any] = []

    def __call__(self, x: Any) -> Any:
        toolset = BACKEND.toolset()
        taps = {} if toolset is None else _core.instrument(toolset, BACKEND, self).lowered or {}
        values: dict[str, Any] = {"x": x, "kernel": self.kernel}
        for i, node in enumerate(self.nodes):
            inputs: Sequence[Any] = [values[symbol.name] for symbol in node.inputs]
            outputs: Sequence[Any] = []
            for tap in taps.get(i, ()):
                if tap.point == "before":
                    inputs = tap.run(self.sites[i], inputs)
            outputs = [node.run(*inputs)]
            for tap in taps.get(i, ()):
                if tap.point == "after":
                    outputs = tap.run(self.sites[i], inputs, outputs)
            values[node.output.name] = outputs[0]
        return values["result"]

    def each_op(self, visitor: Any) -> None:
        self.sites = [
            _core.OpSite(BACKEND, node.type, 100 + i, node.inputs, (node.output,)) for i, node in enumerate(self.nodes)
        ]
        for site in self.sites:
            visitor.op(site)

    def lower(self, sites: list[tuple[int, list[Any]]]) -> dict[int, list[Any]]:
        return dict(sites)


class TinyVocabulary(Vocabulary):
    namespace = "tiny"
    words = {
        "linear": {"tiny::dense": {"input": "signal", "weight": "kernel"}},
        "relu": {"tiny::rectify": {"input": "signal"}},
    }
    weight_layouts: dict[str, str] = {}

    def rank(self, value: Any) -> int | None:
        return len(value.shape)

    def is_transposed(self, context: Any, word: str, on_the_left: bool) -> bool | None:
        return True


class TinyDriver:
    """See `amanda.driver.protocol.Driver`."""

    framework = "Tiny"
    loaded_with = None
    namespace_of_new = "tiny"
    closed_namespaces = frozenset({"tiny"})
    requires_gradient = "it has no gradients"
    options: dict[str, Any] = {}
    import_hooks: dict[str, Callable[[], object]] = {}
    vocabulary = TinyVocabulary()

    def is_available(self) -> bool:
        return True

    def describe(self, whole: bool = False) -> list[tuple[str, str]]:
        return [("tiny", "of the tests")]

    def could_name(self, name: str) -> bool:
        return False

    def make_coverage_counter(self, tools: list[int]) -> None:
        return None

    def load(self) -> None:
        pass

    def operators(self) -> list[str]:
        return ["tiny::dense", "tiny::rectify"]

    def has_operator(self, name: str) -> bool:
        return False

    def operators_named_by(self, value: object) -> Sequence[str]:
        return ()

    def enter(self) -> None:
        pass

    def leave(self) -> None:
        pass

    def preserved(self, program: object) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    @contextlib.contextmanager
    def recorded(self) -> Iterator[Callable[[object], bool]]:
        yield lambda result: False

    def origins(self, symbol: object) -> None:
        return None

    def variable_of(self, symbol: object) -> VariableValue | None:
        if not isinstance(symbol, Symbol) or not symbol.is_variable:
            return None
        return VariableValue(symbol.name, symbol.name, None, True, math.prod(symbol.shape), len(symbol.shape))

    def is_array(self, symbol: object) -> bool:
        return isinstance(symbol, Symbol)

    def own_work(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def access(self, namespace: str, operator: str) -> Access | None:
        return Access() if namespace.startswith("tiny/") else None

    def listen_to_optimizers(self, before: Any, after: Any) -> Callable[[], object]:
        return lambda: None

    def remarks(self) -> list[str]:
        return []
