"""GraphTracing: the program as a graph of which operator's results each operator consumes."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import json
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch

from amanda import _core, _fork
from amanda.drivers.torch import port
from amanda.op_context import OpContext
from amanda.reports.columns import name_column, number_column
from amanda.reports.data_frame import fields_of
from amanda.reports.places import GroupBy, Place
from amanda.reports.results import Grouping, Results
from amanda.reports.rich_table import Column
from amanda.tool import Tool
from amanda.tools import _reading
from amanda.tools._arrays import of_torch

if TYPE_CHECKING:
    import networkx

NodeId = int | str


@dataclasses.dataclass(frozen=True, eq=False)
class Node:
    """An operator, or a tensor from outside, which no observed operator made.

    An outside tensor is named after the first operator that consumes it and the argument there.
    """

    id: NodeId  # an operator's context.op_id; else a string made of the first consumer's id and the position there
    kind: Literal["operator", "input", "parameter"]  # input: a tensor that is not an nn.Parameter
    name: str  # "aten::linear"; for a tensor "weight"
    module_path: str
    source: str  # file:line of the call

    @property
    def text_id(self) -> str:
        """The id as text: 16 hexadecimal digits, and for a tensor the position. JSON numbers have only 53 bits."""
        return self.id if isinstance(self.id, str) else f"{self.id:016x}"


class Graph:
    """Operators and the tensors that flow between them. You can read it while a program adds to it.

    ``graph[context.op_id]`` is an operator's node, ``len(graph)`` the number of nodes, and iteration yields the nodes
    in the order of their first run.
    """

    def __init__(self) -> None:
        self._lock = _fork.rlock()  # of everything below
        self._nodes: dict[NodeId, Node] = {}
        self._producers: dict[Node, dict[Node, set[int]]] = collections.defaultdict(dict)
        self._consumers: dict[Node, dict[Node, set[int]]] = collections.defaultdict(dict)  # the same sets of positions

    def __repr__(self) -> str:
        nodes, edges = list(self), self._edges()
        operators = sum(node.kind == "operator" for node in nodes)
        outside = len(nodes) - operators
        return f"<amanda Graph: operators: {operators}, tensors from outside: {outside}, edges: {len(edges)}>"

    def __getitem__(self, node_id: NodeId) -> Node:
        return self._nodes[node_id]

    def __contains__(self, node_id: object) -> bool:
        return node_id in self._nodes

    def __iter__(self) -> Iterator[Node]:
        with self._lock:
            return iter(list(self._nodes.values()))

    def __len__(self) -> int:
        return len(self._nodes)

    def producers(self, node: Node) -> dict[Node, list[int]]:
        """The producers that `node` consumes, each with the positions of node's inputs that take its results."""
        return self._neighbours(self._producers, node)

    def consumers(self, node: Node) -> dict[Node, list[int]]:
        """The consumers of what `node` made, each with the positions of the consumer's inputs that take it."""
        return self._neighbours(self._consumers, node)

    def to_networkx(self) -> networkx.DiGraph:
        """A graph whose nodes are the ids, with `kind`, `name`, `module_path` and `source` as attributes. An edge goes
        from producer to consumer and has `inputs`, a sorted list of positions.

        Raises:
            ImportError: networkx is not installed.
        """
        try:
            import networkx
        except ImportError as error:
            raise ImportError(
                "[graph] to_networkx needs networkx: pip install 'amanda[graph]'; to_dot() and to_json() need nothing"
            ) from error
        graph = networkx.DiGraph()
        for node in self:
            graph.add_node(node.id, **_attributes(node))
        for producer, consumer, inputs in self._edges():
            graph.add_edge(producer.id, consumer.id, inputs=inputs)
        return graph

    def to_dot(self) -> str:
        """Returns text for Graphviz: operators are boxes, tensors from outside are ellipses."""
        lines = ["digraph {", "  node [shape=box];"]
        for node in self:
            label = json.dumps(f"{node.name}\n{node.module_path}".rstrip())  # quotes as DOT does
            shape = "" if node.kind == "operator" else ", shape=ellipse"
            lines.append(f'  "{node.text_id}" [label={label}{shape}];')
        lines += [f'  "{producer.text_id}" -> "{consumer.text_id}";' for producer, consumer, _ in self._edges()]
        return "\n".join([*lines, "}"]) + "\n"

    def to_json(self) -> str:
        """``{"nodes": [{"id", "kind", "name", "module_path", "source"}], "edges": [{"from", "to", "inputs"}]}``, ids as
        `Node.text_id`."""
        nodes = [{"id": node.text_id, **_attributes(node)} for node in self]
        edges = [
            {"from": producer.text_id, "to": consumer.text_id, "inputs": inputs}
            for producer, consumer, inputs in self._edges()
        ]
        return json.dumps({"nodes": nodes, "edges": edges})

    def _neighbours(self, side: dict[Node, dict[Node, set[int]]], node: Node) -> dict[Node, list[int]]:
        with self._lock:
            return {other: sorted(inputs) for other, inputs in side.get(node, {}).items()}

    def _edges(self) -> list[tuple[Node, Node, list[int]]]:
        return [(node, consumer, inputs) for node in self for consumer, inputs in self.consumers(node).items()]

    def _add(self, node: Node) -> Node:
        with self._lock:
            return self._nodes.setdefault(node.id, node)

    def _connect(self, producer: Node, consumer: Node, position: int) -> None:
        with self._lock:
            inputs = self._producers[consumer].setdefault(producer, set())
            inputs.add(position)
            self._consumers[producer][consumer] = inputs

    def _clear(self) -> None:
        with self._lock:
            self._nodes.clear()
            self._producers.clear()
            self._consumers.clear()

    def _connected(self, producer: Node, consumer: Node, position: int) -> bool:
        with self._lock:
            return position in self._producers[consumer].get(producer, ())


@dataclasses.dataclass(frozen=True)
class Row:
    """One node of the graph; or all nodes of one name and kind, or of one module or line."""

    id: str  # `Node.text_id`, by "id"; else ""
    kind: str  # "operator", "input" or "parameter", by "id" and "op"; else ""
    name: str  # "aten::linear"; for a tensor "weight"; by "module" or "line" that module's path, or that line
    module_path: str  # by "id" and "module"; else ""
    source: str  # file:line of the call, by "id" and "line"; else ""
    nodes: int
    producers: int  # nodes outside the row of which it consumes results
    consumers: int  # nodes outside the row that consume its results


class GraphTracing(Results[Row, GroupBy], Tool):
    """Finds which operator made each tensor that an operator consumes::

        tracing = GraphTracing()
        with amanda.apply(tracing):
            model(x)
        for node in tracing.graph:
            print(node.name, "<-", [producer.name for producer in tracing.graph.producers(node)])

    A tool that depends on this one finds ``context["graph"]`` and ``context["node"]``. When an operator is analyzed,
    its producers are known; its consumers are not known yet.

    The edges are those of `torch.fx.symbolic_trace`, but for any program, because they are recorded at run time. A view
    is made by the operator that returned it. An in-place operator, or one with ``out=``, makes what it writes; every
    later operator that reads that memory, through any tensor, consumes it. (torch.fx follows Python names and misses a
    write whose result is not used: ``x.add_(1); y = x * 2``.) An operator that returns its input itself, as dropout
    does in evaluation, counts as its maker.

    Nodes are places in the program: a loop body has one node per operator, and an edge from one round to the next is a
    cycle. An iteration that repeats the same operators adds nothing: if an operator has read a tensor from outside,
    that tensor stays the source, even if an optimizer or a batch norm writes to it between iterations. If one iteration
    makes a tensor and the next reads it, such as Adam's averages, the second iteration adds the edges.

    Numbers are not nodes. Not tracked: tensors without storage (sparse ones), writes through one view that are read
    through another if neither contains the other, and writes while nothing is observed. If another tool's routine
    replaces an operand, the new value counts as an input, unless it replaced an output and that tool was applied before
    this one.

    No tensor is kept alive. Memory grows with the program and with the number of live tensors, not with iterations.

    Rows are by "id" (the default: one node), "op", "module" or "line", in the order in which they first ran. See
    `Results` for `rows`, `table`, `to_pandas` and `reset`. `reset` empties `graph`; tensors that were made before then
    come from outside.

    Arguments:
        once: trace each operator in its first run only. Later runs cost nothing, and add no edges.
    """

    _speaker = "graph"
    _kind = Column("kind", lambda row: row.kind, left=True, field="kind")
    _counts = (
        number_column("nodes", "nodes"),
        number_column("producers", "producers"),
        number_column("consumers", "consumers"),
    )
    _groupings = {
        "id": Grouping([name_column("id"), _kind, *_counts[1:]], fields_of(Row, without=["nodes"])),
        "op": Grouping([name_column("op"), _kind, *_counts], fields_of(Row, without=["id", "module_path", "source"])),
        "module": Grouping(
            [name_column("module"), *_counts], fields_of(Row, without=["id", "kind", "module_path", "source"])
        ),
        "line": Grouping(
            [name_column("line"), *_counts], fields_of(Row, without=["id", "kind", "module_path", "source"])
        ),
    }

    def __init__(self, *, once: bool = False) -> None:
        super().__init__()
        self.graph = Graph()
        self._once = once
        self._skips = _reading.Skips("graph")
        self._memory = _Memory(self.graph, self._skips)
        self._lock = _fork.rlock()  # of _memory
        self.add_inst_for_op(self._analyze)

    @property
    def skipped(self) -> dict[str, int]:
        """How many tensors could not be tracked because their storage cannot be read, by reason."""
        return self._skips.counts()

    def _analyze(self, context: OpContext) -> None:
        op = context.op
        node = self.graph._add(Node(context.op_id, "operator", op.name, context.module_path, context.source))
        context["graph"], context["node"] = self.graph, node
        schema = port.parse_schema(op.schema)
        written = [i for i, argument in enumerate(schema.arguments) if is_written(argument)]
        returned = [i for i, result in enumerate(schema.returns) if not is_written(result)]
        self._consume(*context.inputs, node=node, names=op.input_names)
        before = context.insert_before_op(self._before, with_run=True, node=node, names=op.input_names, written=written)
        actions = [before]
        actions.append(context.insert_after_op(self._after, returned, with_run=True, node=node, actions=actions))

    def reset(self) -> None:
        with self._lock:
            self.graph._clear()
            self._memory = _Memory(self.graph, self._skips)
        self._skips.reset()

    def _rows(self, by: GroupBy) -> list[Row]:
        groups: dict[tuple[str, Place, str], set[Node]] = {}
        for node in self.graph:
            place = Place(None, node.name, node.module_path, node.source).group(by)
            key = (node.text_id if by == "id" else "", place, node.kind if by in ("id", "op") else "")
            groups.setdefault(key, set()).add(node)
        return [self._row(*key, nodes) for key, nodes in groups.items()]

    def _row(self, node_id: str, place: Place, kind: str, nodes: set[Node]) -> Row:
        producers = {producer for node in nodes for producer in self.graph.producers(node)} - nodes
        consumers = {consumer for node in nodes for consumer in self.graph.consumers(node)} - nodes
        return Row(node_id, kind, *place[1:], len(nodes), len(producers), len(consumers))

    def _remarks(self, by: GroupBy) -> list[str]:
        return [self._skips.caption()]

    def _consume(self, *inputs: Any, node: Node, names: list[str]) -> list[_Read]:
        with self._lock, port.WithoutTorchFunction():
            return [
                self._memory.read(tensor, node, position, f"{position}.{member}", names[position])
                for position, value in enumerate(inputs)
                for member, tensor in enumerate(_tensors(value))
            ]

    def _before(self, *inputs: Any, run: dict[str, Any], node: Node, names: list[str], written: list[int]) -> None:
        node = self.graph._add(node)  # it may be gone since its analysis: a reset
        run["reads"] = self._consume(*inputs, node=node, names=names)
        with port.WithoutTorchFunction():
            run["written"] = [tensor for position in written for tensor in _tensors(inputs[position])]

    def _after(self, *results: Any, run: dict[str, Any], node: Node, actions: list[_core.Action]) -> None:
        # What an in-place operator wrote is looked up through its arguments, not its result: the first run that
        # autograd records happens on a copy.
        with self._lock, port.WithoutTorchFunction():
            node = self.graph._add(node)
            for tensor in run["written"]:
                self._memory.write(tensor, node)
            for value in results:
                for tensor in _tensors(value):
                    self._memory.make(tensor, node, run["reads"])
        if self._once:
            for action in actions:
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


def _attributes(node: Node) -> dict[str, str]:
    return {"kind": node.kind, "name": node.name, "module_path": node.module_path, "source": node.source}
