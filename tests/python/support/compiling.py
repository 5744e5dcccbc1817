"""What the tests of compiled programs share: a tool that looks, and what it is to see."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import amanda
import torch
from torch._dynamo.backends.registry import lookup_backend
from torch.utils._pytree import tree_leaves


class Looks(amanda.Tool):
    """Looks at every operand and gradient, and copies nothing.

    `forward` counts the operators that ran, `backward` those whose backward operators did; `places` has the ids of the
    operators and the modules that call them; `values` counts what it was shown.
    """

    def __init__(self, ops: Any = None) -> None:
        super().__init__()
        self.places: dict[int, tuple[str, str]] = {}
        self.recomputed: Counter[str] = Counter()
        self.namespaces: set[str] = set()
        self.clear()
        self.add_inst_for_op(self.analyze, ops=ops)
        self.add_inst_for_op(self.analyze_backward, ops=ops, backward=True)

    def clear(self) -> None:
        self.forward: Counter[str] = Counter()
        self.values = 0
        self._backward: set[tuple[str, int, int]] = set()

    @property
    def backward(self) -> Counter[str]:
        return Counter(name for name, _, _ in self._backward)

    def analyze(self, context: amanda.OpContext) -> None:
        self.places[context.op_id] = context.op.__name__, context.module_path
        self.namespaces.add(context.namespace)
        if context.is_recompute:
            self.recomputed[context.op.__name__] += 1
        context.insert_before_op(self.look)
        context.insert_after_op(self.look)
        context.insert_after_op(self.ran, outputs=[], with_run=True, name=context.op.__name__)

    def analyze_backward(self, context: amanda.OpContext) -> None:
        if context.backward_op.__name__ == "AccumulateGrad":
            return
        context.insert_before_backward_op(self.look)
        context.insert_after_backward_op(self.look)
        named = {"name": context.op.__name__, "op_id": context.op_id}
        context.insert_before_backward_op(self.ran_backward, grad_outputs=[], with_run=True, **named)

    def look(self, *values: Any) -> None:
        self.values += len(values)

    def ran(self, *, name: str, run: Any) -> None:
        self.forward[name] += 1

    def ran_backward(self, *, name: str, op_id: int, run: Any) -> None:
        self._backward.add((name, op_id, run.index))


def apply(*tools: amanda.Tool, **options: Any) -> amanda.Scope:
    return amanda.apply(*tools, compiled="graph", **options)


class Keeps:
    """A backend that keeps the graphs, and the inputs of their last calls."""

    def __init__(self, backend: str = "aot_eager") -> None:
        self._compile = lookup_backend(backend)
        self.calls: dict[int, tuple[torch.fx.GraphModule, tuple[Any, ...]]] = {}

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        compiled, number = self._compile(graph, inputs), len(self.calls)
        self.calls[number] = graph, ()

        def run(*inputs: Any) -> Any:
            self.calls[number] = graph, tuple(map(as_leaf, inputs))
            return compiled(*inputs)

        return run


def as_leaf(value: Any) -> Any:
    if not isinstance(value, torch.Tensor) or value.is_leaf:
        return value
    return value.detach().clone().requires_grad_(value.requires_grad)


def operators_of(kept: Keeps) -> tuple[Counter[str], Counter[str]]:
    """What Dynamo's graphs run, forward and backward, one operator at a time."""
    looks = Looks()
    scope = amanda.apply(looks)
    for graph, inputs in kept.calls.values():
        with scope:
            differentiate(graph(*inputs))
    return looks.forward, looks.backward


ONE = torch.ones(())


def differentiate(results: Any) -> None:
    """A weighted sum of whatever has a gradient; scopes see operators of results only."""
    with amanda.disabled():
        results = results.to_tuple() if hasattr(results, "to_tuple") else results
        parts = [leaf for leaf in tree_leaves(results) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
        loss = sum((weighted_sum(part.float()) for part in parts), torch.zeros(()))
    if parts:
        loss.backward(ONE)


def weighted_sum(value: torch.Tensor) -> torch.Tensor:
    """With equal weights, the gradients before a normalization were zero but for rounding."""
    weights = torch.arange(value.numel(), device=value.device).cos().reshape(value.shape)
    return (value * weights).sum()
