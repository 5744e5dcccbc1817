"""Runs one of Dynamo's graphs on fake tensors, node by node, to learn which operators the nodes call."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any

import torch
from torch import fx

from amanda.drivers.torch_compile import port
from amanda.drivers.torch_compile.program import (
    aliasing,
    backward_ids,
    bodies,
    facts,
    fakes,
    functions,
    indices,
    recorder,
    refusals,
    returned,
)
from amanda.drivers.torch_compile.program.calls import Call, Constant, Origin, Ref
from amanda.drivers.torch_compile.program.recorder import Seen, tensors_in
from amanda.drivers.torch_compile.program.symbols import Numbers, Symbols, UntracedError

_CALLS = ("call_function", "call_method", "call_module")


class GraphRun:
    """`calls`: those that tools are shown, in the order in which they run. `made`: all, by node. `values`: for each of
    these nodes, its value as Refs. `copied`: see returned.settle(). `same`: for a node whose value is an operand, not a new
    tensor, the earlier nodes with that value."""

    def __init__(self, gm: fx.GraphModule, real: Mapping[fx.Node, Any], state: Set[int]) -> None:
        """Arguments: real: the tensors of the program that placeholders stand for. state: the addresses of those that are
        parameters and buffers: they are shown as themselves.
        """
        self.gm, self._real, self._state = gm, dict(real), state
        self.calls: list[Call] = []
        self.unseen: list[tuple[str, str]] = []
        self.made: dict[fx.Node, list[Call]] = {}
        self.values: dict[fx.Node, Any] = {}
        self.bodies: list[bodies.Body] = []
        self.copied: returned.Copied = {}
        self.same: dict[fx.Node, list[fx.Node]] = {}
        self._own: dict[fx.Node, list[Call]] = {}  # without those of bodies
        self._env: dict[fx.Node, Any] = {}
        self._numbers = Numbers()
        self._tensors: dict[int, Any] = {}  # the real tensor that a fake one stands for, by the fake one's address
        self._autocast: list[Any] = []

    def run(self) -> None:
        try:
            for node in self.gm.graph.nodes:
                value = self._env[node] = self._value(node)
                self._numbers.add(value, Ref(node))
            aliasing.settle(self.gm.graph, self._env, self._own)
            self.copied |= returned.settle(self.gm.graph, self._env, self._own)
            for call in itertools.chain.from_iterable(self._own.values()):
                call.backward_unseen = refusals.backward_unseen(call)
        finally:
            for mode in reversed(self._autocast):
                port.exit_autocast(mode)

    def _value(self, node: fx.Node) -> Any:
        if node.op == "placeholder":
            return self._input(node, self._real.get(node))
        if node.op == "get_attr":
            held = _attribute(self.gm, node.target)
            return self._input(node, held) if isinstance(held, torch.Tensor) else held
        if node.op not in _CALLS:
            return None
        if isinstance(node.target, port.HigherOrderOperator):
            return self._run_bodies(node)
        return self._run_node(node)

    def _input(self, node: fx.Node, real: Any) -> Any:
        example = node.meta.get("example_value", real)
        value = fakes.fresh(example)
        if isinstance(value, torch.Tensor) and isinstance(real, torch.Tensor) and not recorder.is_fake(real):
            self._tensors[id(value)] = real
        return value

    def _run_node(self, node: fx.Node) -> Any:
        args, kwargs = fx.map_arg((node.args, dict(node.kwargs)), self._env.__getitem__)
        function, what = self._function(node, args)
        if node.op == "call_method":
            args = args[1:]
        seen: list[Seen] = []
        if node.target is torch.tensor:
            self.unseen += _of_constant("torch.tensor()", "numbers")
        lists: list[tuple[torch.Tensor, Constant]] = []
        if node.target in indices.INDEXING:
            args = indices.with_tensors(args, lists)
            self.unseen += _of_constant(what, "a list") if lists else []
        try:
            value = recorder.run(function, args, kwargs, seen)
        except Exception as error:
            self.unseen.append((what, f"it does not run on fake tensors: {type(error).__name__}: {_first_line(error)}"))
            return fakes.fresh(node.meta.get("example_value"))
        self._note_autocast(node, value)
        if seen:
            self._add(node, what, seen, value, lists)
            if isinstance(value, torch.Tensor) and any(self._env[operand] is value for operand in node.all_input_nodes):
                self.same[node] = [known for known, other in self._env.items() if other is value]
        if fakes.has_unbacked(value) and "example_value" in node.meta:
            return fakes.fresh(node.meta["example_value"])  # its symbols are those that later nodes know
        return value

    def _function(self, node: fx.Node, args: Sequence[Any]) -> tuple[Any, str]:
        if node.op == "call_method":
            return getattr(args[0], str(node.target)), str(node.target)
        if node.op == "call_module":
            return self.gm.get_submodule(str(node.target)), str(node.target)
        return node.target, str(getattr(node.target, "__name__", node.target))

    def _note_autocast(self, node: fx.Node, value: Any) -> None:
        if node.target is port.enter_autocast:
            self._autocast.append(value)
        elif node.target is port.exit_autocast:
            self._autocast.pop()

    # ---- what the node calls ------------------------------------------------------------------------------------------

    def _add(
        self, node: fx.Node, what: str, seen: list[Seen], value: Any, constants: Sequence[tuple[torch.Tensor, Constant]]
    ) -> None:
        symbols = Symbols(self._numbers)
        for tensor, constant in constants:
            symbols.add_constant(tensor, constant)
        for operand in node.all_input_nodes:
            symbols.add_operand(operand, self._env[operand])
        made = []
        for index, one in enumerate(seen):
            call = self._call(node, index, one, symbols)
            made.append(call)
            symbols.add_results(call, one.outputs)
        untraced = next((call for call in made if call.args is None), None)
        reason = f"{what} calls it beside {untraced.name}, of which {untraced.unseen}" if untraced else ""
        try:
            self.values[node] = symbols.ref_of(value)
        except UntracedError as error:
            reason = reason or f"the result of {what}, which calls it, is {error}"
        self.made[node] = self._own[node] = made
        for call in made:
            call.unseen = call.unseen or reason
            if call.unseen:
                self.unseen.append((call.name, call.unseen))
                if call.backward:
                    self.unseen.append((f"autograd::{call.backward}", call.unseen))
            else:
                self.calls.append(call)

    def _call(self, node: fx.Node, index: int, seen: Seen, symbols: Symbols) -> Call:
        args, untraced = facts.traced(seen, symbols)
        inputs = tuple(map(self._shown, seen.args, seen.inputs))
        call = Call(
            node,
            index,
            seen.op,
            args,
            inputs,
            seen.outputs,
            seen.inputs,
            seen.args,
            seen.frames,
            origins=tuple(itertools.chain.from_iterable(map(self._origins_of, itertools.count(), seen.args))),
            result_is_view=seen.is_view,
        )
        call.result_is = facts.result_is(call)
        call.differentiable = facts.requiring(seen.inputs), facts.recorded(seen)
        node = facts.backward_of(seen)
        if node is not None:
            call.backward = str(node.name()).removeprefix("torch::autograd::")
            call.backward_form = backward_ids.form_of(node, map(fakes.node_of, tensors_in(seen.inputs)))
        call.unseen = facts.unshowable(seen) or untraced
        return call

    def _shown(self, arg: Any, before: Any) -> Any:
        if isinstance(arg, tuple | list):
            return type(arg)(map(self._shown, arg, before)) if type(arg) in (tuple, list) else arg
        real = self._tensors.get(id(arg)) if isinstance(arg, torch.Tensor) else None
        return real if id(real) in self._state else before

    def _origins_of(self, position: int, arg: Any) -> Iterator[Origin]:
        for tensor in arg if isinstance(arg, tuple | list) else (arg,):
            if not isinstance(tensor, torch.Tensor):
                continue
            for candidate, is_view in ((tensor, False), (tensor._base, True)):
                real = self._tensors.get(id(candidate)) if candidate is not None else None
                if real is not None:
                    if id(real) in self._state or _is_in_ids(real):
                        yield Origin(position, real, is_view)
                    break

    # ---- bodies -------------------------------------------------------------------------------------------------------

    def _run_bodies(self, node: fx.Node) -> Any:
        found = bodies.bodies_of(self.gm, node)
        if not found:
            self.unseen.append((bodies.name_of(node), "it is an operator of higher order, which tools are not shown"))
        for body in found:
            real = {
                placeholder: self._tensors[id(self._env[operand])]
                for placeholder, operand in body.operands.items()
                if id(self._env[operand]) in self._tensors
            }
            inner = GraphRun(body.gm, real, self._state)
            inner.run()
            self.unseen += inner.unseen
            reason = bodies.unseen(self.gm, body)
            if reason:
                self.unseen += [(call.name, reason) for call in inner.calls]
                continue
            self.bodies += [body, *inner.bodies]
            self._add_calls_of(inner, bodies.name_of(node))
            self.made |= inner.made
            self.values |= inner.values
            self.copied |= inner.copied
            self.same |= inner.same
        value = fakes.fresh(node.meta.get("example_value"))
        if bodies.is_function(node):
            self._add_function(node, value)
        return value

    def _add_function(self, node: fx.Node, value: Any) -> None:
        call = functions.call_of(node, self._env, value, self._origins_of)
        if call is None:
            return
        if call.unseen:
            self.unseen.append((f"autograd::{call.backward}", call.unseen))
            return
        self.made[node] = self._own[node] = [call]
        self.calls.append(call)

    def _add_calls_of(self, body: GraphRun, what: str) -> None:
        for call in body.calls:
            reason = refusals.unseen_in_body(call)
            if not reason:
                self.calls.append(call)
                continue
            reason = f"it is inside {what}, and {reason}"
            self.unseen.append((call.name, reason))
            if call.backward:
                self.unseen.append((f"autograd::{call.backward}", reason))


def _is_in_ids(tensor: torch.Tensor) -> bool:
    return (tensor.requires_grad and tensor.is_leaf) or isinstance(tensor._base, torch.nn.Parameter)


def _attribute(gm: fx.GraphModule, target: Any) -> Any:
    found: Any = gm
    for name in str(target).split("."):
        found = getattr(found, name)
    return found


def _of_constant(what: str, of: str) -> list[tuple[str, str]]:
    """The operators that make a tensor of it in eager mode, and why compiled code has none."""
    reason = f"{what} calls it for {of}, which is a part of the compiled code"
    return [(name, reason) for name in ("aten::empty", "aten::to")]


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
