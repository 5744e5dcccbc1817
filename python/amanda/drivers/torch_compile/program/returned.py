"""The values that a graph returns. Its caller may write to them in place, and relies on which of them share memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from amanda.drivers.torch_compile.program.aliasing import storages_of
from amanda.drivers.torch_compile.program.calls import Call

Copied = dict[fx.Node, list[Call]]


def settle(graph: fx.Graph, values: Mapping[fx.Node, Any], made: Mapping[fx.Node, Sequence[Call]]) -> Copied:
    """Sets `returned` and `returned_as_view` of the calls of one graph; the arguments are those of `aliasing.settle`.

    Returns the views that the graph returns a copy of, if there are taps on the gradients of these calls: they share
    memory with nothing else that the caller has.
    """
    results = [each for node in graph.nodes if node.op == "output" for each in node.all_input_nodes]
    inputs = [node for node in graph.nodes if node.op in ("placeholder", "get_attr")]
    holders = Counter(storage for node in {*results, *inputs} for storage in set(storages_of(values[node])))
    copied: Copied = {}
    for result in results:
        calls = list(_makers(result, values, made))
        views = [call for call in calls if _is_view(call)]
        for call in calls:
            call.returned |= call not in views
        if views and _can_be_copied(values[result]) and all(holders[s] == 1 for s in storages_of(values[result])):
            copied[result] = views
            continue
        for call in views:
            call.returned_as_view = True
    return copied


def _makers(result: fx.Node, values: Mapping[fx.Node, Any], made: Mapping[fx.Node, Sequence[Call]]) -> Iterator[Call]:
    """The calls whose results a value is, or is a view of."""
    storages, found = set(storages_of(values[result])), {result: None}
    for node in (pending := [result]):
        sharing = (each for each in node.all_input_nodes if not storages.isdisjoint(storages_of(values[each])))
        pending += [each for each in sharing if each not in found]
        found |= dict.fromkeys(pending)
    for node in found:
        yield from (call for call in made.get(node, ()) if not storages.isdisjoint(storages_of(call.outputs)))


def _is_view(call: Call) -> bool:
    if call.mutated:
        return False
    inputs = set(storages_of(call.run_inputs))
    return any(storage in inputs for storage in storages_of(call.outputs))


def _can_be_copied(value: Any) -> bool:
    """True for a tensor whose copy has the same strides."""
    return isinstance(value, torch.Tensor) and torch.empty_like(value).stride() == value.stride()
