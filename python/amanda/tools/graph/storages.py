"""Storages: the edges of programs that PyTorch runs eagerly, found while they run, by the memory of tensors."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any, Literal, NamedTuple

import torch

from amanda import _core, _fork
from amanda.drivers.torch import port
from amanda.op_context import OpContext
from amanda.tools import _reading
from amanda.tools._arrays import of_torch
from amanda.tools.graph.graph import Graph, Node


class Edges:
    """Looks each operand up before an operator, and notes each result after it."""

    def __init__(self, graph: Graph, skips: _reading.Skips) -> None:
        self._graph, self._skips = graph, skips
        self._lock = _fork.rlock()  # of the next one
        self._memory = _Memory(graph, skips)

    def reset(self) -> None:
        with self._lock:
            self._memory = _Memory(self._graph, self._skips)

    def trace(self, context: OpContext, node: Node, once: bool) -> None:
        op = context.op
        node = context["node"] = self._graph._add(node)
        schema = port.parse_schema(op.schema)
        written = [i for i, argument in enumerate(schema.arguments) if is_written(argument)]
        returned = [i for i, result in enumerate(schema.returns) if not is_written(result)]
        self._consume(*context.inputs, node=node, names=op.input_names)
        before = context.insert_before_op(self._before, with_run=True, node=node, names=op.input_names, written=written)
        actions = [before]
        done = actions if once else []
        actions.append(context.insert_after_op(self._after, returned, with_run=True, node=node, done=done))

    def _consume(self, *inputs: Any, node: Node, names: list[str]) -> list[_Read]:
        with self._lock, port.WithoutTorchFunction():
            return [
                self._memory.read(tensor, node, position, f"{position}.{member}", names[position])
                for position, value in enumerate(inputs)
                for member, tensor in enumerate(_tensors(value))
            ]

    def _before(self, *inputs: Any, run: dict[str, Any], node: Node, names: list[str], written: list[int]) -> None:
        node = self._graph._add(node)  # it may be gone since its analysis: a reset
        run["reads"] = self._consume(*inputs, node=node, names=names)
        with port.WithoutTorchFunction():
            run["written"] = [tensor for position in written for tensor in _tensors(inputs[position])]

    def _after(self, *results: Any, run: dict[str, Any], node: Node, done: list[_core.Action]) -> None:
        # What an in-place operator wrote is looked up through its arguments, not its result: the first run that
        # autograd records happens on a copy.
        with self._lock, port.WithoutTorchFunction():
            node = self._graph._add(node)
            for tensor in run["written"]:
                self._memory.write(tensor, node)
            for value in results:
                for tensor in _tensors(value):
                    self._memory.make(tensor, node, run["reads"])
        for action in done:
            action.remove()


# ---- who made which tensor -------------------------------------------------------------------------------------------

# NOTE: [recognising a tensor]
# A routine receives a result through another Python object than the one its consumer will hold, so Python identity
# cannot be used. Neither a strong nor a weak reference to a tensor may be kept: a strong one keeps its memory alive, a
# weak one breaks torch.utils.swap_tensors. Result and operand share the storage and the place in it (`_Place`).
#
# A storage is identified by its address, and we hold a weak reference to it (to the storage, which swap_tensors
# ignores). Its memory is freed with its last tensor as usual, but the small object at that address stays until the weak
# reference is released. So an address in our table cannot belong to a newer storage, and no tensor inherits the
# producers of a freed one.
#
# Several live tensors may share one place: x and x.detach(). The newest is the one that was made last. The others are
# distinguished by the addresses that they had as operands of the operator that made it (`_View.older`), when they and
# the new tensor were all alive.

# Places kept per storage. Tensors at an evicted place count as made by the maker of the place evicted last.
MAX_VIEWS = 1024


class _Place(NamedTuple):
    """Where a tensor's elements are in its storage, and how they are read."""

    offset: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    conjugate: bool
    negative: bool

    def contains(self, other: _Place) -> bool:
        """True only if certain: this tensor fills its byte range without gaps, and the other's range is inside it."""
        begin, end = self._range()
        other_begin, other_end = other._range()
        solid = math.prod(self.sizes) * self.dtype.itemsize == end - begin
        return solid and begin <= other_begin and other_end <= end

    def _range(self) -> tuple[int, int]:
        last = sum((size - 1) * stride for size, stride in zip(self.sizes, self.strides, strict=True))
        return self.offset * self.dtype.itemsize, (self.offset + last + 1) * self.dtype.itemsize


@dataclasses.dataclass(eq=False, slots=True)
class _View:
    """The tensors at one place of a storage."""

    maker: Node  # returned the newest one, or overwrote all of them
    time: int  # when
    older: dict[int, Node]  # makers of older tensors, by the tensors' addresses
    outside: Node | None  # what they were before any operator wrote to them


@dataclasses.dataclass(eq=False, slots=True)
class _Storage:
    alive: Any
    maker: Node | None  # of unknown views; None: they come from outside
    views: dict[_Place, _View]  # most recently used last
    writes: dict[Node, tuple[_Place, int]]  # the last write of each operator: where and when


class _Read(NamedTuple):
    """A tensor as an operator consumed it."""

    address: int
    storage: _Storage | None
    place: _Place | None
    maker: Node | None


class _Memory:
    """The live storages, and which operators made the tensors in them."""

    def __init__(self, graph: Graph, skips: _reading.Skips) -> None:
        self._graph = graph
        self._skips = skips
        self._storages: dict[int, _Storage] = {}
        self._limit = 128
        self._clock = itertools.count()

    def read(self, tensor: torch.Tensor, consumer: Node, position: int, slot: str, name: str) -> _Read:
        """Connects the producers of `tensor` with its consumer."""
        storage, place = self._find(tensor)
        if storage is None or place is None:
            return _Read(tensor._cdata, None, None, None)
        view = storage.views.pop(place, None)
        if view is not None:
            storage.views[place] = view  # moves it to the end
        elif storage.maker is None:
            view = self._put(storage, place, self._outside(tensor, consumer, slot, name), {})
            view.outside = view.maker
        maker = storage.maker if view is None else view.older.get(tensor._cdata, view.maker)
        assert maker is not None
        if view is None or view.outside is None or not self._graph._connected(view.outside, consumer, position):
            self._graph._connect(maker, consumer, position)
            made = -1 if view is None else view.time
            for writer, (written, time) in storage.writes.items():
                if time > made and (written.contains(place) or place.contains(written)):
                    self._graph._connect(writer, consumer, position)
        return _Read(tensor._cdata, storage, place, maker)

    def make(self, tensor: torch.Tensor, maker: Node, reads: list[_Read]) -> None:
        """`maker`, which consumed `reads`, returned `tensor`."""
        storage, place = self._find(tensor)
        if storage is None or place is None:
            return
        if not storage.views:
            storage.maker = maker
        older = {
            read.address: read.maker
            for read in reads
            if read.storage is storage and read.place == place and read.maker and read.address != tensor._cdata
        }
        self._put(storage, place, maker, older)

    def write(self, tensor: torch.Tensor, writer: Node) -> None:
        """`writer` overwrote `tensor`."""
        storage, place = self._find(tensor)
        if storage is None or place is None:
            return
        view = self._put(storage, place, writer, {})
        storage.writes[writer] = (place, view.time)

    def _find(self, tensor: torch.Tensor) -> tuple[_Storage, _Place] | tuple[None, None]:
        tensor = torch.func.debug_unwrap(tensor)  # without the wrappers of vmap and grad
        if of_torch.is_symbolic(tensor):
            self._skips.add("symbolic")
            return None, None
        try:
            memory = tensor.untyped_storage()
            sizes, strides = ((), ()) if tensor.is_nested else (tuple(tensor.shape), tensor.stride())
            place = _Place(tensor.storage_offset(), sizes, strides, tensor.dtype, tensor.is_conj(), tensor.is_neg())
        except RuntimeError as error:  # also NotImplementedError: it has no storage
            self._skips.add(of_torch.why_unreadable(tensor) or "failed", str(error))
            return None, None
        storage = self._storages.get(memory._cdata)
        if storage is None:
            self._forget_the_dead()
            storage = self._storages[memory._cdata] = _Storage(port.StorageWeakRef(memory), None, {}, {})
        return storage, place

    def _put(self, storage: _Storage, place: _Place, maker: Node, older: dict[int, Node]) -> _View:
        known = storage.views.pop(place, None)
        view = storage.views[place] = _View(maker, next(self._clock), older, known.outside if known else None)
        if len(storage.views) > MAX_VIEWS:
            forgotten = storage.views.pop(next(iter(storage.views)))
            if forgotten.maker.kind == "operator":
                storage.maker = forgotten.maker
        return view

    def _outside(self, tensor: torch.Tensor, consumer: Node, slot: str, name: str) -> Node:
        kind: Literal["input", "parameter"] = "parameter" if isinstance(tensor, torch.nn.Parameter) else "input"
        return self._graph._add(Node(f"{consumer.text_id}.{slot}", kind, name, consumer.module_path, consumer.source))

    def _forget_the_dead(self) -> None:
        if len(self._storages) < self._limit:
            return
        self._storages = {address: one for address, one in self._storages.items() if not one.alive.expired()}
        self._limit = max(128, 2 * len(self._storages))


def _tensors(value: Any) -> list[torch.Tensor]:
    """An operand's tensors: itself, or the members of a list."""
    members = value if isinstance(value, (list, tuple)) else [value]
    return [member for member in members if isinstance(member, torch.Tensor) and not _is_number(member)]


_NARROW = {torch.int64: torch.int8, torch.float64: torch.float16, torch.complex128: torch.complex64}
_NARROW_SCALARS = {wide: torch.empty((), dtype=narrow) for wide, narrow in _NARROW.items()}


def _is_number(tensor: torch.Tensor) -> bool:
    """The 2 of ``x * 2`` arrives as a tensor, but its type yields to the narrower type of a scalar tensor."""
    if tensor.dim() != 0 or tensor.dtype not in _NARROW_SCALARS:
        return False
    return bool(torch.result_type(tensor, _NARROW_SCALARS[tensor.dtype]) != tensor.dtype)


def is_written(argument: Any) -> bool:
    """Does an operator write to this argument, or result, of its schema?"""
    return bool(argument.alias_info and argument.alias_info.is_write)
