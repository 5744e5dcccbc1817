"""Paths from parameters to a loss, and where they end."""

from __future__ import annotations

import collections
from collections.abc import Callable, Container, Iterable, Iterator
from typing import Any

import torch

from amanda.toolkit import Place
from amanda.toolkit.frames import is_library, split_line

from .cut import Cut, at
from .flow import Edge, Flow, Leaf, Outside, Site, Source, Step
from .reasons import LEAVES_PYTORCH, NO_DERIVATIVE, REASONS, of_zero

CHECKPOINT = "CheckpointFunction"
_NOWHERE = Site(Place(None, "", "", ""), "")


class Paths:
    """The paths to the tensors at which one backward pass began."""

    def __init__(self, flow: Flow, roots: tuple[Any, ...]) -> None:
        self._root = Step(0, _NOWHERE, flow.edges(roots))
        self._uses: dict[Source, list[tuple[Step, Edge]]] = collections.defaultdict(list)
        for step in (*flow.steps(), self._root):
            for edge in step.edges:
                self._uses[edge.source].append((step, edge))
        self._useful = self._sources_of(self._root)

    def cuts_of(self, leaf: Leaf) -> list[Cut]:
        """Where the paths of a parameter end that reached the loss not at all; empty if one does by autograd."""
        if not any(isinstance(edge.source, Step) for edge in self._root.edges):
            return [_cut("no forward pass", None, None)]
        if leaf not in self._uses:
            return [_cut("unused", None, None)]
        if leaf not in self._useful:
            return self._loose_ends(leaf)
        cuts, reaches = self._ends(leaf)
        return [] if reaches else cuts

    def not_used(self, asked: Iterable[Edge]) -> list[str]:
        """The tensors of which gradients are asked, and that do not lead here, in words: what made each, and the operator
        that uses what it was made of."""
        found = []
        for source in dict.fromkeys(edge.source for edge in asked):
            if source in self._useful or not isinstance(source, Step):
                continue
            before = next((one for one in self._before(source) if one in self._useful), None)
            use = (
                next((step for step, _ in self._uses.get(before, ()) if step in self._useful), None) if before else None
            )
            uses = (
                f": {at(use.site.place)} uses what this was made of, not this" if use and use is not self._root else ""
            )
            text = f"what the gradient is asked of does not use the result of {at(source.site.place)}{uses}"
            found.append(text)
        return found

    def _before(self, step: Step) -> Iterator[Source]:
        seen: set[Source] = {step}
        queue: collections.deque[Source] = collections.deque([step])
        while queue:
            source = queue.popleft()
            for edge in source.edges if isinstance(source, Step) else ():
                if edge.source not in seen:
                    seen.add(edge.source)
                    queue.append(edge.source)
                    yield edge.source

    def zeros_of(self, leaf: Leaf, arrived: dict[Step, bool], is_zero: Callable[[Leaf], bool]) -> list[Cut]:
        """The operators whose backward operators made the gradient of a parameter zero, or left it out.

        Arguments:
            arrived: by step: a gradient arrived at its result, and was not zero.
            is_zero: all elements of this leaf are, and it gets a gradient.
        """
        found: dict[Cut, None] = {}
        seen: set[Source] = {leaf}
        queue: collections.deque[tuple[Source, Step | None]] = collections.deque([(leaf, None)])
        while queue:
            source, inside = queue.popleft()
            for step, edge in self._uses.get(source, ()):
                if step in seen or step not in self._useful or self._why(source, edge, step):
                    continue
                seen.add(step)
                last = source.site.place if isinstance(source, Step) else None
                if step is self._root:
                    found[_cut("loss", last, None)] = None
                elif not arrived.get(step):
                    function = step if step.site.function and step not in arrived else None
                    queue.append((step, function))
                elif inside is not None:
                    found[_function(inside.site, None)] = None
                else:
                    found[self._zero(step, source, last, is_zero)] = None
        return list(found)

    def _zero(self, step: Step, source: Source, last: Place | None, is_zero: Callable[[Leaf], bool]) -> Cut:
        written = self._overwritten_by(step)
        if written is not None:
            text = f"{REASONS['saved output']}, by {written.site.place}"
            return Cut("saved output", text, last, step.site.place)
        reason = of_zero(step.site.op)
        others = [edge.source for edge in step.edges if isinstance(edge.source, Leaf) and edge.source is not source]
        if reason == "factor" and any(map(is_zero, others)):
            return Cut("starts at zero", REASONS["starts at zero"], last, step.site.place, is_meant=True)
        return _cut(reason, last, step.site.place)

    def _overwritten_by(self, step: Step) -> Step | None:
        """The write to a result of this step past autograd's count of versions."""
        for use, edge in self._uses.get(step, ()):
            if edge.is_alias and use.site.op.endswith("_"):
                return use
        return None

    def _ends(self, leaf: Leaf) -> tuple[list[Cut], bool]:
        """Where paths to the loss end, in the order of time; and whether one reaches it. A path that goes on by an operator
        to which another one leads is none: it is cut where that one is."""
        found: dict[Cut, tuple[int, list[Step]]] = {}
        before: dict[Source, Place | None] = {leaf: None}
        queue: collections.deque[Source] = collections.deque([leaf])
        while queue:
            source = queue.popleft()
            for step, edge in self._uses.get(source, ()):
                if step not in self._useful:
                    continue
                cut = self._why(source, edge, step, before[source])
                if cut is not None:
                    found.setdefault(cut, (source.number, []))[1].append(step)
                elif step is self._root:
                    return [], True
                elif step not in before:
                    before[step] = source.site.place if isinstance(source, Step) else None
                    queue.append(step)
        apart = self._sources_of(self._root, before)
        cuts = [cut for cut, (_, steps) in found.items() if any(step in apart for step in steps)]
        return sorted(cuts, key=lambda cut: found[cut][0]), False

    def _why(self, source: Source, edge: Edge, step: Step, last: Place | None = None) -> Cut | None:
        """Why autograd does not connect a step with its source; None if it does."""
        if not isinstance(source, Step):
            if edge.is_alias:
                return _cut("data", None, step.site.place)
            return None if edge.requires_grad else _cut("frozen", None, step.site.place)
        site = source.site
        if edge.is_alias:
            return _cut("data", site.place, step.site.place)
        if site.function and site.function == step.site.function and not edge.requires_grad:
            return None  # inside of the function's forward, nothing requires a gradient
        if edge.requires_grad and not edge.is_leaf and (source.is_recorded or site.function):
            return None
        if site.function:
            return _function(site, last)
        if _writes_leaf(source, edge):
            return _cut("leaf", last, site.place)
        return _not_recorded(source, edge, last)

    def _loose_ends(self, leaf: Leaf) -> list[Cut]:
        """The last operators that used what comes from a parameter, if nothing of it reaches the loss."""
        last: dict[Source, Place | None] = {leaf: None}  # of each, the last operator before it on the path by autograd
        recorded: set[Source] = {leaf}
        came: dict[Source, Source] = {}
        queue: collections.deque[Source] = collections.deque([leaf])
        ends: list[Step] = []
        while queue:
            source = queue.popleft()
            uses = self._uses.get(source, ())
            if isinstance(source, Step) and not uses and source.site.op not in LEAVES_PYTORCH:
                ends.append(source)
            for step, edge in uses:
                if step in last:
                    continue
                is_on = source in recorded and self._why(source, edge, step) is None
                last[step] = source.site.place if is_on and isinstance(source, Step) else last[source]
                if is_on:
                    recorded.add(step)
                came[step] = source
                queue.append(step)
        found = [_in_user_code(step, came) for step in sorted(ends, key=_number)[-1:]]
        cuts = [_cut("outside the loss", last[step], step.site.place) for step in found]
        left = [one for one in last if isinstance(one, Step) and one.site.op in LEAVES_PYTORCH]
        return [*(self._left(step, last[step]) for step in sorted(left, key=_number)[:1]), *cuts]

    def _left(self, step: Step, last: Place | None) -> Cut:
        """Values leave PyTorch at this step."""
        made = self._made_outside(step.number)
        more = f"; the loss uses a tensor that no operator made, first at {at(made)}" if made else ""
        text = f"{REASONS['item']} {LEAVES_PYTORCH[step.site.op]}{more}"
        return Cut("item", text, last, step.site.place)

    def _made_outside(self, since: int) -> Place | None:
        """The first operator on the way to the loss that uses a tensor of unknown origin that is new since then."""
        for step in sorted((one for one in self._useful if isinstance(one, Step)), key=lambda one: one.number):
            if any(isinstance(edge.source, Outside) and edge.source.number > since for edge in step.edges):
                return step.site.place
        return None

    def _sources_of(self, root: Step, without: Container[Source] = ()) -> set[Source]:
        """All that the values of the loss come from, and itself. `without`: and not by these."""
        found: set[Source] = {root}
        queue: list[Source] = [root]
        while queue:
            source = queue.pop()
            for edge in source.edges if isinstance(source, Step) else ():
                if edge.source not in found and edge.source not in without:
                    found.add(edge.source)
                    queue.append(edge.source)
        return found


def _in_user_code(step: Step, came: dict[Source, Source]) -> Step:
    """The last step on the way there that a line of the user calls; itself, if there is none."""
    source: Source | None = step
    while isinstance(source, Step):
        line = split_line(source.site.place.source)
        if line is not None and not is_library(line[0]):
            return source
        source = came.get(source)
    return step


def _number(source: Source) -> int:
    return source.number


def _writes_leaf(step: Step, edge: Edge) -> bool:
    op = step.site.op
    return edge.is_leaf and op.endswith("_") and op not in ("detach_", "requires_grad_")


def _not_recorded(step: Step, edge: Edge, last: Place | None) -> Cut:
    """Why autograd recorded nothing, though an operand required a gradient."""
    op, end = step.site.op, step.site.place
    if op in ("detach", "detach_", "_detach"):
        return _cut("detach", last, end)
    if step.is_inference:
        return _under("inference_mode", step, last)
    if edge.dtype == torch.bool:
        return _cut("boolean", last, end)
    if edge.dtype is not None and not edge.dtype.is_floating_point and not edge.dtype.is_complex:
        return _cut("integer", last, end)
    if op in NO_DERIVATIVE or op.startswith("new_"):
        return _cut("not differentiable", last, end)
    if not end.name.startswith("aten::"):
        return Cut("no_grad", f"{REASONS['no_grad']}, or it has no derivative", last, end)
    return _under("no_grad", step, last)


def _under(reason: str, step: Step, last: Place | None) -> Cut:
    text = f"{REASONS[reason]}, {step.unrecorded_by}" if step.unrecorded_by else REASONS[reason]
    return Cut(reason, text, last, step.site.place)


def _cut(reason: str, last: Place | None, end: Place | None) -> Cut:
    return Cut(reason, REASONS[reason], last, end)


def _function(site: Site, last: Place | None) -> Cut:
    if site.function == CHECKPOINT:
        return _cut("checkpoint", last, site.place)
    return Cut("function", f"{REASONS['function']}: {site.function}", last, site.place)
