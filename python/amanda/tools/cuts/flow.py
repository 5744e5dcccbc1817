"""The flow of values between operators, also where autograd records none. Imports torch; keeps no tensor."""

from __future__ import annotations

import collections
import threading
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch

from amanda.toolkit import Place
from amanda.toolkit.torch import StorageWeakRef, WeakTensorRef

from .unrecorded import unrecorded_by

KEPT = 20_000  # steps of earlier rounds
LONGEST = 50_000  # steps in a round, as of a program without backward passes


class Site(NamedTuple):
    """An operator at its place in the program."""

    place: Place
    function: str  # the autograd.Function in whose forward it runs; ""

    @property
    def op(self) -> str:
        """The operator without namespace and overload: "add_"."""
        return self.place.name.rpartition("::")[2].partition(".")[0]


class Source:
    """The origin of a value."""

    __slots__ = ("__weakref__", "number")

    def __init__(self, number: int) -> None:
        self.number = number  # in the order of time


class Leaf(Source):
    """A parameter, or another leaf of autograd's graph."""

    __slots__ = ("origin", "origin_is_alias", "pointer", "tensor")

    def __init__(self, number: int, tensor: Any) -> None:
        super().__init__(number)
        self.tensor = weakref.ref(tensor)
        self.pointer = 0  # to its elements, which `.data = ...` may change
        self.origin: Step | None = None  # what made its elements, if that was an operator on others
        self.origin_is_alias = False  # this has a gradient, which goes past the leaf


class Outside(Source):
    """The unknown origin of a tensor: the program's input, numpy, ``torch.tensor``."""

    __slots__ = ()


class Step(Source):
    """One run of an operator."""

    __slots__ = ("edges", "is_inference", "is_recorded", "site", "unrecorded_by")

    def __init__(self, number: int, site: Site, edges: list[Edge]) -> None:
        super().__init__(number)
        self.site, self.edges = site, edges
        self.is_recorded = self.is_inference = False  # by autograd; under inference_mode
        self.unrecorded_by = ""  # the function that runs it under no_grad, in words


class Edge(NamedTuple):
    """An operand of a step. A tuple: there are many."""

    source: Source
    requires_grad: bool
    is_leaf: bool  # of those that require a gradient
    is_alias: bool  # it was no result of its source, but lies in the same memory: ``.data``
    dtype: Any  # of those that require none


class _Memory:
    """The last sources of the elements at an address: one whose result requires a gradient, and one whose does not."""

    __slots__ = ("differentiable", "plain", "reference")

    def __init__(self, storage: Any) -> None:
        self.reference = StorageWeakRef(storage)  # until it is forgotten, no other storage is the same
        self.differentiable: Source | None = None
        self.plain: Source | None = None


class Flow:
    """The steps of the last rounds. A round ends with a backward pass.

    A tensor that a routine is shown need not be the program's object. So a result of autograd is known by its node, a leaf
    by its address, and any other tensor by its memory.
    """

    def __init__(self) -> None:
        self._number = 0
        self._results: dict[tuple[int, int, int], Step] = {}
        self._leaves: dict[int, tuple[WeakTensorRef, Leaf]] = {}
        self._memory: dict[int, _Memory] = {}  # by the address of the elements
        self._written: dict[int, tuple[StorageWeakRef, Step]] = {}  # the last write to each storage
        self._rounds = collections.deque[list[Step]]([[]])
        self._kept = 0  # steps, in all but the last round
        self._swept = 1000

    def leaf(self, tensor: Any) -> Leaf:
        """That of this leaf of autograd's graph."""
        known = self._leaves.get(tensor._cdata)
        if known is None:
            known = self._leaves[tensor._cdata] = WeakTensorRef(tensor), Leaf(self._next(), tensor)
        leaf, pointer = known[1], _pointer(tensor)
        if pointer != leaf.pointer:
            leaf.pointer = pointer
            memory = self._memory_of(tensor)
            origin = None if memory is None else memory.plain or memory.differentiable
            leaf.origin = origin if isinstance(origin, Step) and origin.edges else None
            leaf.origin_is_alias = memory is not None and memory.plain is None
            self._lies(tensor, leaf, True)
        return leaf

    def before_write(self, operands: Sequence[Any], written: Sequence[int]) -> tuple[list[Edge], list[Any]]:
        """For `add`: where the operands come from, and those that the operator will write to, by position."""
        targets = list(tensors(operands[i] for i in written))
        own = {edge.source for edge in self.edges(targets) if isinstance(edge.source, Leaf)}
        # A leaf that is written to is no use of itself.
        return [edge for edge in self.edges(operands) if edge.source not in own], targets

    def add(self, site: Site, edges: list[Edge], outputs: Iterable[Any], written: Iterable[Any]) -> Step:
        """An operator has run on what `edges` returned for its operands."""
        step = Step(self._next(), site, edges)
        self._rounds[-1].append(step)
        for tensor in tensors(outputs):
            key = _key(tensor)
            # An operator that autograd does not record returns an operand, or what requires no gradient.
            is_new = key is not None and key is not _UNKNOWN and self._results.setdefault(key, step) is step
            step.is_recorded |= is_new
            step.is_inference |= tensor.is_inference()
            self._lies(tensor, step, is_new)
        if not step.is_recorded and any(edge.requires_grad for edge in edges):
            step.unrecorded_by = unrecorded_by()
        for tensor in written:
            self._lies(tensor, step, step.is_recorded)
            storage = _storage(tensor)
            if storage is not None:
                before = self._written.get(storage._cdata)
                if before is not None and not before[0].expired():
                    edges.append(_edge(before[1], tensor))
                self._written[storage._cdata] = StorageWeakRef(storage), step
        if len(self._rounds[-1]) > LONGEST:
            self.end_round()
        return step

    def edges(self, values: Iterable[Any]) -> list[Edge]:
        """Where these values come from."""
        found: list[Edge] = []
        for tensor in tensors(values):
            number = self._add_edge(tensor, found)
            if self._written and (storage := _storage(tensor)) is not None:
                write = self._written.get(storage._cdata)
                if write is not None and write[1].number > number and not write[0].expired():
                    found.append(_edge(write[1], tensor))
        return found

    def _add_edge(self, tensor: Any, found: list[Edge]) -> int:
        """Returns the number of the source."""
        requires_grad, key = tensor.requires_grad, _key(tensor)
        step = None if key is None else self._results.get(key)
        if step is not None:
            found.append(Edge(step, True, False, False, None))
            return step.number
        if key is None and (requires_grad or tensor._cdata in self._leaves):
            leaf = self.leaf(tensor)
            found.append(_edge(leaf, tensor))
            if leaf.origin is not None:
                found.append(_edge(leaf.origin, tensor)._replace(is_alias=leaf.origin_is_alias))
            return leaf.number
        memory = self._memory_of(tensor)
        if memory is None:
            source: Source = Outside(self._next())
            self._lies(tensor, source, False)
            found.append(_edge(source, tensor))
            return source.number
        plain = memory.plain if not requires_grad or memory.differentiable is None else memory.differentiable
        source = plain or memory.differentiable or Outside(0)
        found.append(_edge(source, tensor, plain is None))
        return source.number

    def made(self, tensor: Any) -> Step | None:
        """The operator whose result this is, by autograd; None for other tensors."""
        key = _key(tensor) if isinstance(tensor, torch.Tensor) else None
        return None if key is None else self._results.get(key)

    def steps(self) -> Iterator[Step]:
        """Those that are kept, in order."""
        return (step for one in self._rounds for step in one)

    def end_round(self) -> None:
        """Forgets what ran long ago, and what is no more."""
        self._kept += len(self._rounds[-1])
        self._rounds.append([])
        while len(self._rounds) > 3 and self._kept > KEPT:
            forgotten = self._rounds.popleft()
            self._kept -= len(forgotten)
            for step in forgotten:
                step.edges = []
        if len(self._memory) + len(self._results) + len(self._leaves) > self._swept:
            self._sweep()

    def _sweep(self) -> None:
        kept = set(self.steps())
        self._results = {key: step for key, step in self._results.items() if step in kept}
        self._leaves = {key: one for key, one in self._leaves.items() if not one[0].expired()}
        self._memory = {key: one for key, one in self._memory.items() if not one.reference.expired()}
        self._written = {key: one for key, one in self._written.items() if not one[0].expired()}
        self._swept = max(1000, 2 * (len(self._memory) + len(self._results) + len(self._leaves)))

    def _next(self) -> int:
        self._number += 1
        return self._number

    def _memory_of(self, tensor: Any) -> _Memory | None:
        memory = self._memory.get(_pointer(tensor))
        return None if memory is None or memory.reference.expired() else memory

    def _lies(self, tensor: Any, source: Source, is_differentiable: bool) -> None:
        """The tensor's elements come from this source."""
        pointer = _pointer(tensor)
        storage = _storage(tensor) if pointer else None
        if storage is None:
            return
        memory = self._memory.get(pointer)
        if memory is None or memory.reference.expired():
            memory = self._memory[pointer] = _Memory(storage)
        if is_differentiable:
            memory.differentiable, memory.plain = source, None
        else:
            memory.plain = source


def tensors(values: Iterable[Any]) -> Iterator[Any]:
    """The tensors among these values, also in lists."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from tensors(value)


def _edge(source: Source, tensor: Any, is_alias: bool = False) -> Edge:
    if tensor.requires_grad:
        return Edge(source, True, _key(tensor) is None, False, None)
    return Edge(source, False, False, is_alias, tensor.dtype)


def _key(tensor: Any) -> tuple[int, int, int] | None:
    """The node of a result of autograd, numbered within its thread, and the result's position; None for other tensors."""
    if not tensor.requires_grad:
        return None
    try:
        node = tensor.grad_fn
    except RuntimeError:  # a view from a block under no_grad, whose base was written to
        return _UNKNOWN
    return None if node is None else (threading.get_ident(), node._sequence_nr(), tensor.output_nr)


_UNKNOWN = (0, 0, -1)  # of no step


def _storage(tensor: Any) -> Any:
    """None for tensors without one: sparse ones, wrappers."""
    try:
        return tensor.untyped_storage()
    except (AttributeError, NotImplementedError, RuntimeError):
        return None


def _pointer(tensor: Any) -> int:
    try:
        return int(tensor.data_ptr())
    except (NotImplementedError, RuntimeError):
        return 0
