"""Takes what traceable routines do into a graph: their operators become nodes, which the program's backend compiles with
its own."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import fx

from amanda import _core
from amanda.drivers.torch_compile import port
from amanda.drivers.torch_compile.program import fakes
from amanda.drivers.torch_compile.program.calls import Call, arguments_of
from amanda.drivers.torch_compile.view.graph_site import Shown


class _UntraceableError(Exception):
    """The reason why a routine is called instead."""


def inline(
    graph: fx.Graph,
    tap: _core.Tap,
    shown: Shown,
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    constant: Callable[[torch.Tensor], fx.Node],
) -> list[Any] | None:
    """Adds nodes that do what the tap's routines do, at the graph's insert point.

    Returns the values of the operands after the tap: the inputs if it is before the operator, otherwise the outputs.
    Returns None if the routines cannot become nodes, and must be called each time.

    Arguments: inputs, outputs: the values of the operator's operands, by schema position. Before the operator, or in
    its place, there are no outputs. constant: returns the node of a tensor that the routines read in addition to their
    operands.
    """
    if shown.is_backward:
        return None
    try:
        around = _Surroundings.of(shown.call.node)
        traced = _trace(tap, shown, around)
        return _Inliner(graph, shown.call, traced, constant).add(tap, inputs, outputs)
    except _UntraceableError as reason:
        why: object = reason
    except Exception as error:  # of the routine, too: it is raised again when the routine is called
        why = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
    logging.getLogger("amanda").info(
        "[compile] a traceable routine at %s (%s) can't be compiled, and is called each time: %s",
        shown.call.name,
        shown.place.source,
        why,
    )
    return None


@dataclasses.dataclass(frozen=True, slots=True)
class _Surroundings:
    """The modes that the program has set where a node is."""

    grad: bool
    autocasts: tuple[tuple[Any, ...], ...]  # arguments of those that are entered

    @classmethod
    def of(cls, node: fx.Node) -> _Surroundings:
        grad, entered = torch.is_grad_enabled(), dict[fx.Node, tuple[Any, ...]]()
        for before in node.graph.nodes:
            if before is node:
                break
            if before.target is port.set_grad_enabled:
                grad = bool(before.args[0])
            elif before.target is port.enter_autocast:
                entered[before] = before.args
            elif before.target is port.exit_autocast:
                entered.pop(before.args[0], None)
        return cls(grad, tuple(entered.values()))

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for device, dtype, enabled, cache in self.autocasts:
                stack.enter_context(torch.autocast(device, dtype, enabled, cache))
            stack.enter_context(torch.set_grad_enabled(self.grad))
            yield


@dataclasses.dataclass(frozen=True, slots=True)
class _Traced:
    gm: fx.GraphModule
    operands: list[tuple[bool, int]]  # those that the routines got: true for outputs, and the position
    isolated: bool


def _trace(tap: _core.Tap, shown: Shown, around: _Surroundings) -> _Traced:
    call = shown.call
    isolated = tap.point != "replace" and not tap.differentiable
    if isolated and around.autocasts:
        raise _UntraceableError("it runs without the autocast around it; with differentiable=True it runs in it")
    after = tap.point == "after"
    gets = [(False, i) for i in range(len(call.fakes)) if (tap.shows_input(i) if after else tap.selects(i))]
    gets += [(True, i) for i in range(len(call.outputs)) if after and tap.selects(i)]

    def run(*given: Any) -> Any:
        inputs: list[Any] = [None] * len(call.fakes)
        outputs: list[Any] = [None] * len(call.outputs)
        for (of_outputs, i), value in zip(gets, given, strict=True):
            (outputs if of_outputs else inputs)[i] = value
        original = _original(call) if tap.point == "replace" else None
        return tuple(tap.run(shown.site, inputs, outputs if after else (), original=original))

    mode = _fake_mode_of(call)
    with contextlib.ExitStack() as stack:
        stack.enter_context(port.tracing(None))
        stack.enter_context(torch.no_grad() if isolated else around.entered())
        stack.enter_context(_constants_allowed(mode))
        with mode:
            operands = [fakes.fresh((call.outputs if of_outputs else call.fakes)[i]) for of_outputs, i in gets]
        if mode.shape_env is not None:
            stack.enter_context(mode.shape_env.ignore_fresh_unbacked_symbols())
        gm = port.make_fx(run, tracing_mode="fake", _allow_non_fake_inputs=True, pre_dispatch=True)(*operands)
    return _Traced(gm, gets, isolated)


def _original(call: Call) -> Callable[..., Any]:
    def run(*inputs: Any) -> Any:
        positional, named = arguments_of(call, inputs)
        return call.op(*positional, **named)

    return run


def _fake_mode_of(call: Call) -> Any:
    for value in port.tree_leaves((call.fakes, call.outputs)):
        if isinstance(value, port.FakeTensor):
            return value.fake_mode
    raise _UntraceableError("it gets no tensor")


@contextlib.contextmanager
def _constants_allowed(mode: Any) -> Iterator[None]:
    """Routines compute with tensors of their own."""
    before, mode.allow_non_fake_inputs = mode.allow_non_fake_inputs, True
    try:
        yield
    finally:
        mode.allow_non_fake_inputs = before


class _Inliner:
    def __init__(
        self, graph: fx.Graph, call: Call, traced: _Traced, constant: Callable[[torch.Tensor], fx.Node]
    ) -> None:
        self._graph, self._call, self._traced, self._constant = graph, call, traced, constant
        self._meta = {name: value for name, value in call.node.meta.items() if name != "example_value"}

    def add(self, tap: _core.Tap, inputs: Sequence[Any], outputs: Sequence[Any]) -> list[Any]:
        after = list(inputs if tap.point == "before" else outputs)
        if tap.point == "replace":
            after = [None] * len(self._call.outputs)
        examples = self._call.fakes if tap.point == "before" else self._call.outputs
        results = _results(self._traced.gm)
        edited = [i for i in range(len(after)) if tap.point == "replace" or tap.selects(i)]
        for i in edited:  # before anything is added
            _check(_example(results[i]), examples[i])
        given = [(outputs if of_outputs else inputs)[i] for of_outputs, i in self._traced.operands]
        env = self._copy(given)
        for i in edited:
            value = _mapped(results[i], env)
            after[i] = self._with_gradient_of(after[i], value) if self._traced.isolated else value
        return after

    def _copy(self, given: list[Any]) -> dict[fx.Node, Any]:
        """Copies the nodes, and returns what each stands for."""
        leaves = iter(port.tree_leaves(given))
        env: dict[fx.Node, Any] = {}
        nodes = list(self._traced.gm.graph.nodes)
        for node in nodes:
            if node.op == "get_attr" and not isinstance(_held(self._traced.gm, node), torch.Tensor):
                raise _UntraceableError("it calls a higher-order operator")
            if self._traced.isolated and node.target is port.set_grad_enabled and node.args[0]:
                raise _UntraceableError("it records gradients; with differentiable=True it runs as the program does")
        for node in nodes:
            if node.op == "placeholder":
                env[node] = next(leaves)
            elif node.op == "get_attr":
                env[node] = self._constant(_held(self._traced.gm, node))
            elif node.op != "output" and not (self._traced.isolated and node.target is port.set_grad_enabled):
                env[node] = self._graph.node_copy(node, env.__getitem__)
                env[node].meta = dict(self._meta)
        return env

    def _with_gradient_of(self, original: Any, edited: Any) -> Any:
        """The edited value, whose gradient goes to the original."""
        if type(original) in (tuple, list):
            return type(original)(map(self._with_gradient_of, original, edited))
        if edited is original or not isinstance(original, fx.Node):
            return edited
        node = self._graph.call_function(torch.ops.amanda.pass_gradient_v1.default, (original, edited))
        node.meta = dict(self._meta)
        return node


def _results(gm: fx.GraphModule) -> Sequence[Any]:
    (output,) = (node for node in gm.graph.nodes if node.op == "output")
    results: Sequence[Any] = output.args[0]
    return results


def _held(gm: fx.GraphModule, node: fx.Node) -> Any:
    return operator.attrgetter(str(node.target))(gm)


def _mapped(value: Any, env: dict[fx.Node, Any]) -> Any:
    return fx.map_arg(value, env.__getitem__)


def _example(value: Any) -> Any:
    return fx.map_arg(value, lambda node: node.meta.get("val"))


def _check(new: Any, old: Any) -> None:
    """Checks that a value can stand in the place of an operand. If it cannot, the caller of the routine reports
    this."""
    if isinstance(old, list | tuple):
        if not isinstance(new, list | tuple) or len(new) != len(old):
            raise _UntraceableError("it returns another number of values")
        for one, other in zip(new, old, strict=True):
            _check(one, other)
    elif isinstance(old, torch.Tensor) != isinstance(new, torch.Tensor):
        raise _UntraceableError("it returns a tensor where there is none, or none where there is one")
    elif isinstance(old, torch.Tensor):
        kinds = (old.dtype, old.device, old.layout), (new.dtype, new.device, new.layout)
        if kinds[0] != kinds[1] or old.dim() != new.dim() or not _same_shape(new, old):
            raise _UntraceableError(f"it returns {new.dtype} {list(new.shape)} for {old.dtype} {list(old.shape)}")


def _same_shape(a: torch.Tensor, b: torch.Tensor) -> bool:
    return all(port.statically_known_true(x == y) for x, y in zip(a.shape, b.shape, strict=True))


class _PassGradient(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, original: torch.Tensor, edited: torch.Tensor) -> torch.Tensor:
        return edited.view_as(edited)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return gradient, None


def _pass_gradient(original: torch.Tensor, edited: torch.Tensor) -> torch.Tensor:
    return _PassGradient.apply(original, edited.detach())


# An operator, so that compilers may store graphs that have it.
_library = torch.library.Library("amanda", "FRAGMENT")
_library.define("pass_gradient_v1(Tensor original, Tensor edited) -> Tensor")
_library.impl("pass_gradient_v1", _pass_gradient, "CompositeImplicitAutograd")
