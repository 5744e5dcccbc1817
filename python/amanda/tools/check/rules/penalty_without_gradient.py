"""penalty-without-gradient."""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from amanda import OpContext, ops
from amanda.toolkit import Place
from amanda.toolkit.frames import program_line, short_line

from ..gradients import storage
from ..graph import kind
from ..rule import Rule, Step

_SUMS = ("add", "sub", "rsub", "add_", "sub_")
_NODES = 1000  # of the graph of a loss that are looked at, from the loss on


class PenaltyWithoutGradient(Rule):
    """A term of the loss is computed from what `torch.autograd.grad` has returned, without `create_graph=True`: as a
    gradient penalty, the residual of a differential equation, or forces. PyTorch takes it for a constant, the loss still
    goes down by its other terms, and the penalty changes nothing.

    It follows the gradients through norms, products, sums and losses to one number, which is added to a loss that
    `backward()` is called for. Gradients that the program multiplies a loss by, or adds to inputs or weights, are none.
    """

    name = "penalty-without-gradient"
    sentence = "a term of the loss is computed from gradients, and has no gradient"
    fix = "call torch.autograd.grad(..., create_graph=True)"
    ops = (
        *(*ops.linear_like, *ops.convolution),  # with the first of them, it begins to listen
        *_SUMS,
        *("norm", "linalg_norm", "linalg_vector_norm", "frobenius_norm", "pow", "square", "sqrt", "abs", "neg"),
        *("sum", "mean", "mul", "div", "relu", "clamp", "clamp_min", "max", "mse_loss", "l1_loss", "smooth_l1_loss"),
        *("view", "reshape", "flatten", "squeeze", "unsqueeze", "select", "slice"),
        *("transpose", "t", "stack", "cat", "to"),
    )
    with_outputs = True
    bad = """
        x.requires_grad_()
        for _ in range(2):
            optimizer.zero_grad()
            scores = model(x)
            gradient = torch.autograd.grad(scores.sum(), x, retain_graph=True)[0]
            penalty = ((gradient.norm(2, dim=1) - 1) ** 2).mean()
            loss = F.cross_entropy(scores, labels) + 10 * penalty
            loss.backward()
            optimizer.step()
    """
    good = """
        x.requires_grad_()
        for _ in range(2):
            optimizer.zero_grad()
            scores = model(x)
            gradient = torch.autograd.grad(scores.sum(), x, create_graph=True)[0]
            penalty = ((gradient.norm(2, dim=1) - 1) ** 2).mean()
            loss = F.cross_entropy(scores, labels) + 10 * penalty
            loss.backward()
            optimizer.step()
    """

    _stop: Callable[[], None] | None = None

    def begin(self) -> None:
        # Tensors that are computed from gradients, by memory, and the line that asked for these; until the next step.
        self._from: dict[int | None, tuple[Callable[[], Any], str]] = {}
        self._sums: dict[int, tuple[Place, str]] = {}  # by sequence number: additions of such a term

    def look(self, context: OpContext) -> None:
        if self._stop is None:
            from amanda.toolkit.torch import listen_to_backward

            self._stop = listen_to_backward(_Listener(weakref.ref(self)))
        line = next((line for one in _tensors(context.inputs) if (line := self._line_of(one))), "")
        if not line:
            return
        for result in _tensors(context.outputs):
            if not result.requires_grad and storage(result) is not None:
                self._from[storage(result)] = functools.partial(_itself, result), line  # or others get its memory
            elif result.dim() == 0 and result.grad_fn is not None and context.op.__name__ in _SUMS:
                self._sums[result.grad_fn._sequence_nr()] = Place.of(context), line

    def returned(self, gradients: Iterable[Any]) -> None:
        """`torch.autograd.grad` has returned these."""
        line = program_line(sys._getframe(1))
        for one in _tensors(gradients):
            if one.dim() and not one.requires_grad and storage(one) is not None:
                self._from[storage(one)] = weakref.ref(one), line

    def before_pass(self, losses: Iterable[Any]) -> None:
        """`backward()` is about to run."""
        if not self._sums:
            return
        for node in _nodes([one.grad_fn for one in losses]):
            if kind(node) in ("Add", "Sub", "Rsub") and node._sequence_nr() in self._sums:
                added, line = self._sums.pop(node._sequence_nr())
                what = f"what {added.name} ({short_line(added.source)}) adds to the loss is a constant"
                called = Place(None, "torch.autograd.grad", "", line)
                self.found(called, f"it was called without create_graph=True, so that {what}")

    def after_step(self, step: Step) -> None:
        self._from.clear()
        self._sums.clear()

    def at_end(self, ended_well: bool) -> None:
        self._from.clear()
        self._sums.clear()
        if self._stop is not None:
            self._stop()
            self._stop = None

    def _line_of(self, tensor: Any) -> str:
        known = self._from.get(storage(tensor)) if not tensor.requires_grad else None
        return known[1] if known is not None and known[0]() is not None else ""


class _Listener:
    def __init__(self, rule: weakref.ref[PenaltyWithoutGradient]) -> None:
        self._rule = rule

    def begin(self, call: Any) -> None:
        rule = self._rule()
        if rule is not None and call.accumulates and not call.is_nested:
            rule.before_pass(call.tensors)

    def end(self, call: Any, error: BaseException | None, gradients: Any) -> None:
        rule = self._rule()
        if rule is not None and not (call.accumulates or call.creates_graph or call.is_nested):
            rule.returned(gradients)


def _itself(tensor: Any) -> Any:
    return tensor


def _tensors(values: Iterable[Any]) -> Iterator[Any]:
    for one in values:
        if isinstance(one, (list, tuple)):
            yield from _tensors(one)
        elif hasattr(one, "requires_grad"):
            yield one


def _nodes(roots: list[Any]) -> Iterator[Any]:
    """Those of a graph, the nearest to its roots first."""
    todo, seen = [one for one in roots if one is not None], set(roots)
    while todo and len(seen) < _NODES:
        later = []
        for node in todo:
            yield node
            for before, _ in node.next_functions:
                if before is not None and before not in seen:
                    seen.add(before)
                    later.append(before)
        todo = later
