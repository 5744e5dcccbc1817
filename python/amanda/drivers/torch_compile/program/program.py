"""A graph of Dynamo's as a program of operators."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from amanda.drivers.torch_compile import port
from amanda.drivers.torch_compile.program import fakes
from amanda.drivers.torch_compile.program.calls import Call, Constant, Ref, arguments_of
from amanda.drivers.torch_compile.program.graph_run import GraphRun


class Program:
    """`calls`: the operators that tools are shown, in the order in which they run, those of bodies where the body is run.
    `unseen`: what tools are not shown, and why. `bodies`: the graphs inside, each after the one around it. `copied`: see
    returned.settle()."""

    def __init__(self, gm: fx.GraphModule, example_inputs: Sequence[Any]) -> None:
        """`gm` is not changed."""
        self.fake_mode = _fake_mode_of(gm)
        inputs = [node for node in gm.graph.nodes if node.op == "placeholder"]
        real = dict(zip(inputs, example_inputs, strict=True))
        state = {id(tensor) for node, tensor in real.items() if _is_state(node, tensor)}
        self.gm = gm
        self.example_inputs = list(example_inputs)
        run = GraphRun(gm, real, state)
        with fakes.fake_run(self.fake_mode):
            run.run()
        self.calls, self.unseen, self.bodies = run.calls, run.unseen, run.bodies
        self.copied = run.copied
        self._made, self._values, self._same = run.made, run.values, run.same

    def calls_of(self, node: fx.Node) -> list[Call]:
        """The calls that a node makes, also those that tools are not shown."""
        return self._made.get(node, [])

    def same_as(self, node: fx.Node) -> list[fx.Node]:
        """The earlier nodes whose value is the very tensor that this one returns, as the operand of a `to()` that changes
        nothing."""
        return self._same.get(node, [])

    def as_nodes(
        self,
        graph: fx.Graph,
        node: fx.Node,
        copies: Mapping[fx.Node, Any],
        emit: Callable[[Call, tuple[Any, ...]], Sequence[Any]],
    ) -> Any:
        """Adds the calls that a node makes, instead of the node, to a copy of its graph. Returns the new value of the
        node, which stands for its value there.

        Arguments:
            graph: the copy, whose nodes are added at its insert point.
            copies: the new values of the nodes of Dynamo's graph.
            emit: adds a call with the new values of its arguments, and returns the new values of its results, both by
                schema position. `emit_call` is the plain one.
        """
        results: dict[Call, Sequence[Any]] = {}

        def stand_in(value: Any) -> Any:
            if isinstance(value, Ref):
                found: Any = results[value.call] if value.call is not None else copies[_node_of(value)]
                for i in value.path:
                    found = member_of(graph, found, i)
                return found
            if isinstance(value, Constant):
                return graph.call_function(torch.tensor, (value.value,), {"dtype": value.dtype})
            if type(value) in (tuple, list):
                return type(value)(map(stand_in, value))
            return value

        for call in self.calls_of(node):
            assert call.args is not None
            results[call] = emit(call, tuple(map(stand_in, call.args)))
        return stand_in(self._values[node])

    def emit_call(self, graph: fx.Graph, call: Call, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Adds the call itself; see as_nodes()."""
        positional, named = arguments_of(call, args)
        node = graph.call_function(call.op, positional, named)
        node.meta = {name: value for name, value in call.node.meta.items() if name != "example_value"}
        count = len(call.op._schema.returns)
        return (node,) if count == 1 else tuple(graph.call_function(operator.getitem, (node, i)) for i in range(count))


def private_copies(graph: fx.Graph, call: Call, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments for an in-place operator that has taps: copies of the tensors that it writes to. So its results are
    new tensors, which edits can replace. `publish` assigns those of them that others are to see."""
    copy = torch.ops.aten.clone.default
    return tuple(graph.call_function(copy, (arg,)) if i in call.result_is else arg for i, arg in enumerate(args))


def publish(graph: fx.Graph, call: Call, args: tuple[Any, ...], results: Sequence[Any]) -> tuple[Any, ...]:
    """After such an operator and its taps: writes the results to the program's tensors, as far as others see them, and
    returns what stands for the results. `args`: as they were before `private_copies`."""
    published = list(results)
    for i, argument in enumerate(call.result_is):
        if argument is not None and argument in call.writes_seen:
            published[i] = graph.call_function(torch.ops.aten.copy_.default, (args[argument], results[i]))
    return tuple(published)


def member_of(graph: fx.Graph, value: Any, i: int) -> Any:
    """A member of what stands for a tuple or list in a graph."""
    return value[i] if isinstance(value, tuple | list) else graph.call_function(operator.getitem, (value, i))


def _node_of(ref: Ref) -> fx.Node:
    assert ref.node is not None
    return ref.node


def _fake_mode_of(gm: fx.GraphModule) -> Any:
    """Dynamo's own: fake tensors of two modes cannot meet, and backends run in another one."""
    return fakes.mode_of(node.meta.get("example_value") for node in gm.graph.nodes) or port.FakeTensorMode()


def _is_state(node: fx.Node, tensor: Any) -> bool:
    """True if it is a parameter, or held by a module."""
    if not isinstance(tensor, torch.Tensor) or isinstance(tensor, port.FakeTensor):
        return False
    source = getattr(node, "_dynamo_source", None)
    guard = source.guard_source if source is not None else None
    return (
        isinstance(tensor, torch.nn.Parameter)
        or hasattr(tensor, port.STATIC_INPUT)
        or (
            guard is not None
            and (guard.is_unspecialized_nn_module() or guard.is_specialized_nn_module() or guard.is_fsdp_module())
        )
    )
