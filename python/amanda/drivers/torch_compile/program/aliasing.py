"""Who else sees what operators of a graph write: in-place operators, and values that are written later."""

from __future__ import annotations

import bisect
import collections
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import fx

from amanda import _torch
from amanda.drivers.torch_compile.program import fakes
from amanda.drivers.torch_compile.program.calls import Call
from amanda.drivers.torch_compile.program.recorder import tensors_in

_UNDECLARED = frozenset(_torch.undeclared_writes())


def undeclared_writes(call: Call) -> frozenset[int]:
    """Positions of arguments that the operator may write to, though its schema calls them read-only."""
    names = [argument.name for argument in call.op._schema.arguments]
    return frozenset(i for i, name in enumerate(names) if (call.name, name) in _UNDECLARED)


def settle(graph: fx.Graph, values: Mapping[fx.Node, Any], made: Mapping[fx.Node, Sequence[Call]]) -> None:
    """Sets `written_later` and `writes_seen` of the calls of one graph.

    Arguments: values: of the graph's nodes. made: the calls of each node that makes some.
    """
    order = {node: i for i, node in enumerate(graph.nodes)}
    writes = _writes(order, made)
    holders = _Holders(graph, order, values)
    for node, calls in made.items():
        for call in calls:
            at = (order[node], call.index)
            call.written_later = (
                frozenset(i for i, value in enumerate(call.run_inputs) if _is_written(writes, value, at)),
                frozenset(i for i, value in enumerate(call.outputs) if _is_written(writes, value, at)),
            )
            call.writes_seen = frozenset(
                i for i in call.mutated if any(holders.sees(s, order[node]) for s in storages_of(call.run_inputs[i]))
            )


_At = tuple[int, int]  # a call: its node's number, and its index there


def _writes(order: Mapping[fx.Node, int], made: Mapping[fx.Node, Sequence[Call]]) -> dict[int, list[_At]]:
    """For each storage, the calls that write to it, in order."""
    found: dict[int, list[_At]] = collections.defaultdict(list)
    for node, calls in made.items():
        for call in calls:
            for i in {*call.mutated, *undeclared_writes(call)}:
                for storage in storages_of(call.run_inputs[i]):
                    found[storage].append((order[node], call.index))
    return found


def _is_written(writes: Mapping[int, list[_At]], value: Any, at: _At) -> bool:
    return any(writes[s][-1] > at for s in storages_of(value) if s in writes)


class _Holders:
    """The nodes whose values share a storage."""

    def __init__(self, graph: fx.Graph, order: Mapping[fx.Node, int], values: Mapping[fx.Node, Any]) -> None:
        self._inputs: set[int] = set()
        self._holders: dict[int, list[tuple[int, int]]] = collections.defaultdict(list)  # made at, last used at
        for node, value in values.items():
            last = max((order[user] for user in node.users), default=-1)
            for storage in set(storages_of(value)):
                self._holders[storage].append((order[node], last))
                if node.op in ("placeholder", "get_attr"):
                    self._inputs.add(storage)

    def sees(self, storage: int, at: int) -> bool:
        """True if something other than the node with this number, and the users of its value, sees what the node
        writes."""
        if storage in self._inputs:
            return True
        known = self._holders.get(storage, [])
        return any(last > at for _, last in known[: bisect.bisect_left(known, (at, -1))])


def storages_of(value: Any) -> Iterable[int]:
    for tensor in tensors_in(value):
        if fakes.is_plain(tensor):
            yield tensor.untyped_storage()._cdata
