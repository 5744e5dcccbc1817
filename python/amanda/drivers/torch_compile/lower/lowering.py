"""Puts taps into a copy of a program's graph."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Hashable, Sequence
from typing import Any

import torch
from torch import fx

from amanda import _torch_compile
from amanda.drivers.torch_compile import port
from amanda.drivers.torch_compile.lower.operator_nodes import OperatorNodes
from amanda.drivers.torch_compile.lower.tap_nodes import Planned, TapNodes
from amanda.drivers.torch_compile.program import bodies, copies
from amanda.drivers.torch_compile.program.calls import Call
from amanda.drivers.torch_compile.program.program import Program, member_of
from amanda.drivers.torch_compile.view.graph_site import Plans


@dataclasses.dataclass(eq=False, frozen=True, slots=True)
class Lowered:
    """The graph with taps. Compiled code of an equal `structure` does the same, given these `extra` inputs."""

    gm: fx.GraphModule
    extra: list[torch.Tensor]  # after those of the program
    has_backward: bool  # taps
    structure: Hashable
    keep: Any  # as long as it may run


def lower(program: Program, plans: Plans) -> Lowered:
    planned: dict[Call, Planned] = {}
    for shown, taps in plans:
        planned.setdefault(shown.call, Planned()).add(shown, taps)
    return _Lowering(program, planned).lowered()


class _Lowering:
    def __init__(self, program: Program, planned: dict[Call, Planned]) -> None:
        self.program, self.planned = program, planned
        self.slots: list[_torch_compile.Slot] = []
        self.operators: list[_torch_compile.Operator] = []  # of the slots; each refuses edits as long as it lives
        self.constants: list[torch.Tensor] = []
        self._bodies: dict[fx.Node, list[bodies.Body]] = {}
        for body in program.bodies:
            self._bodies.setdefault(body.node, []).append(body)

    def lowered(self) -> Lowered:
        gm = _GraphCopy(self, self.program.gm, is_body=False).made(gets_run=False)
        table = _torch_compile.Table(self.slots)
        forms = tuple(
            (one.dtype, tuple(one.shape), one.stride(), one.device, one.requires_grad) for one in self.constants
        )
        has_backward = any(planned.has_backward for planned in self.planned.values())
        return Lowered(gm, [table.tensor, *self.constants], has_backward, (_text(gm), forms), (table, self.operators))

    def fake(self, tensor: torch.Tensor) -> torch.Tensor:
        return self.program.fake_mode.from_tensor(tensor, static_shapes=True)

    def bodies_with_taps(self, node: fx.Node) -> list[bodies.Body]:
        """The graphs that a higher-order operator runs, if there are taps in any of them."""
        found = self._bodies.get(node, [])
        return found if any(self._has_taps(body.gm) for body in found) else []

    def share_run(self, found: list[bodies.Body]) -> bool:
        """True if taps in these graphs share the state of an execution."""
        nodes = [node for body in found for node in body.gm.graph.nodes]
        calls = (call for node in nodes for call in self.program.calls_of(node))
        return any(call in self.planned and self.planned[call].shares_run for call in calls) or any(
            self.share_run(self._bodies.get(node, [])) for node in nodes
        )

    def _has_taps(self, gm: fx.GraphModule) -> bool:
        return any(
            any(call in self.planned for call in self.program.calls_of(node)) or self.bodies_with_taps(node)
            for node in gm.graph.nodes
        )


class _GraphCopy:
    """A copy of one graph of the program, with the table as one more input. With `gets_run`, an execution is also an
    input."""

    def __init__(self, lowering: _Lowering, gm: fx.GraphModule, is_body: bool) -> None:
        self._lowering, self._gm, self._is_body = lowering, gm, is_body
        self.graph = fx.Graph()
        self._env: dict[fx.Node, Any] = {}
        self._new_bodies: dict[str, fx.GraphModule] = {}
        self._inputs: list[fx.Node] = []

    def made(self, gets_run: bool) -> fx.GraphModule:
        inputs = [node for node in self._gm.graph.nodes if node.op == "placeholder"]
        for node in inputs:
            self._env[node] = self._copied(node)
            self._inputs.append(self._env[node])
        self.table = self._input("amanda_table", torch.tensor(0))
        self._nodes = TapNodes(
            self.graph, self.table, self._lowering.slots, self._lowering.operators, self._is_body, self._constant
        )
        if gets_run:
            self._nodes.run = self._input("amanda_run", torch.tensor(0))
        for node in self._gm.graph.nodes:
            if node.op != "placeholder":
                self._env[node] = self._stand_in(node)
        made: Any = fx.GraphModule(self._gm, self.graph)
        for name, part in list(made.named_children()):
            if name in self._new_bodies:
                setattr(made, name, self._new_bodies[name])
            elif isinstance(part, fx.GraphModule):
                setattr(made, name, copies.copy_of(part))
        made.meta = dict(self._gm.meta)
        for name in "_param_name_to_source", "_source_to_user_stacks":
            if hasattr(self._gm, name):
                setattr(made, name, getattr(self._gm, name))
        return made

    def _input(self, name: str, tensor: torch.Tensor) -> fx.Node:
        with self.graph.inserting_after(self._inputs[-1]) if self._inputs else self._at_start():
            node = self.graph.placeholder(name)
        node.meta["example_value"] = self._lowering.fake(tensor)
        node._dynamo_source = port.ConstantSource(node.name)
        self._inputs.append(node)
        return node

    def _at_start(self) -> Any:
        return self.graph.inserting_before(next(iter(self.graph.nodes), None))

    def _constant(self, tensor: torch.Tensor) -> fx.Node:
        for number, known in enumerate(self._lowering.constants):
            if known is tensor:
                return self._inputs[number - len(self._lowering.constants)]
        self._lowering.constants.append(tensor)
        return self._input(f"amanda_constant_{len(self._lowering.constants)}", tensor)

    # ---- nodes --------------------------------------------------------------------------------------------------------

    def _copied(self, node: fx.Node) -> fx.Node:
        copy = self.graph.node_copy(node, self._env.__getitem__)
        if hasattr(node, "_dynamo_source"):
            copy._dynamo_source = node._dynamo_source
        return copy

    def _stand_in(self, node: fx.Node) -> Any:
        """The value in the copy that stands for a node's value."""
        lowering = self._lowering
        if node.op == "output":
            return self._output(node)
        planned = any(call in lowering.planned for call in lowering.program.calls_of(node))
        if planned and bodies.is_function(node):
            return self._function(node)
        if planned:
            value = lowering.program.as_nodes(self.graph, node, self._env, self._emit)
            if self._is_body:  # or gradients of one tensor would be added in another order
                self._env |= dict.fromkeys(lowering.program.same_as(node), value)
            return value
        if node.target is operator.getitem and isinstance(self._env.get(node.args[0]), tuple | list):
            return self._env[node.args[0]][node.args[1]]
        found = lowering.bodies_with_taps(node)
        return self._with_bodies(node, found) if found else self._copied(node)

    def _emit(self, call: Call, args: tuple[Any, ...]) -> Sequence[Any]:
        planned = self._lowering.planned.get(call)
        if planned is None:
            return self._lowering.program.emit_call(self.graph, call, args)
        return OperatorNodes(self._nodes, self._lowering.program, call, planned).emit(args)

    def _output(self, node: fx.Node) -> fx.Node:
        planned, copied = self._lowering.planned, self._lowering.program.copied
        own = dict(self._env)
        for each in node.all_input_nodes:
            if any(call in planned and planned[call].has_backward for call in copied.get(each, ())):
                own[each] = self.graph.call_function(torch.ops.aten.clone.default, (self._env[each],))
        return self.graph.node_copy(node, own.__getitem__)

    def _function(self, node: fx.Node) -> Any:
        """A `torch.autograd.Function`, with taps on the gradients of its arguments and results."""
        (call,) = self._lowering.program.calls_of(node)
        refs = [ref.node for ref in call.args or ()]

        def apply(inputs: Sequence[Any]) -> Sequence[Any]:
            own = dict(self._env)
            self._env |= dict(zip(refs, inputs, strict=True))
            found = self._lowering.bodies_with_taps(node)
            made = self._with_bodies(node, found) if found else self._copied(node)
            self._env = own
            return [member_of(self.graph, made, i) for i in range(len(call.outputs))]

        nodes = OperatorNodes(self._nodes, self._lowering.program, call, self._lowering.planned[call])
        return tuple(nodes.emit(tuple(self._env[each] for each in refs), apply))

    def _with_bodies(self, node: fx.Node, found: list[bodies.Body]) -> fx.Node:
        # A backward graph that computes its forward graph again gets the execution that it belongs to.
        gets_run = not bodies.is_loop(node) and self._lowering.share_run(found)
        extra = (self.table, *(self._nodes.begin(node) if gets_run else ()))
        for body in found:
            if body.name not in self._new_bodies:
                self._new_bodies[body.name] = _GraphCopy(self._lowering, body.gm, is_body=True).made(gets_run)
        if bodies.is_function(node):
            backward = bodies.backward_of_function(self._gm, node)
            self._new_bodies[backward.name] = _without_gradients(backward.gm, len(extra))
        copy = self._copied(node)
        if isinstance(copy.args[-1], tuple | list):  # cond, while_loop: the operands of all its graphs
            copy.args = (*copy.args[:-1], (*copy.args[-1], *extra))
        else:
            copy.args = (*copy.args, *extra)
        return copy


def _without_gradients(gm: fx.GraphModule, count: int) -> fx.GraphModule:
    """A copy of a graph that returns gradients, which returns None for so many further inputs."""
    copy = copies.copy_of(gm)
    (output,) = (node for node in copy.graph.nodes if node.op == "output")
    output.args = ((*output.args[0], *[None] * count),)
    copy.recompile()
    return copy


def _text(gm: fx.GraphModule) -> str:
    inner = (module for _, module in gm.named_children() if isinstance(module, fx.GraphModule))
    return "\n".join([gm.code, *map(_text, inner)])
