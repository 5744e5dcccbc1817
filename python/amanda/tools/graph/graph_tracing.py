"""GraphTracing: the program as a graph of which operator's results each operator consumes."""

from __future__ import annotations

import dataclasses
import importlib
from typing import Protocol

from amanda import OpContext, Tool
from amanda.toolkit import GroupBy, Place, Skips, TellsSkips, locks
from amanda.toolkit.tables import Column, Grouping, Results, fields_of, name_column, number_column

from .graph import Graph, Node


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


class GraphTracing(TellsSkips, Results[Row, GroupBy], Tool):
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
    cycle. An iteration that repeats the same operators adds nothing. If an operator has read a tensor from outside,
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

    In a graph of TensorFlow, the edges are those of the graph, and a node is there when its operator has run. Operators
    that only pass a value on, such as a loop's own, are no nodes. Constants that are numbers or sizes are no nodes,
    either. A variable is one node, and writes to it are no edges. In a tf.function, a value that a loop carries from
    iteration to iteration also comes from outside, and so do the arguments of functions that it calls. Operators that
    TensorFlow runs eagerly have nodes, but no edges; see `skipped`.

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
        self._skips = Skips("graph")
        self._lock = locks.lock()  # of the next one
        self._edges: dict[str, Edges] = {}  # by how they are found
        self.add_inst_for_op(self._analyze)

    @property
    def skipped(self) -> dict[str, int]:
        """The number of operands that could not be tracked, by reason: their storage cannot be read, or their maker is
        not known."""
        return self._skips.counts()

    def _analyze(self, context: OpContext) -> None:
        op = context.op
        node = Node(context.op_id, "operator", op.name, context.module_path, context.source)
        context["graph"], context["node"] = self.graph, node
        self._edges_of(context).trace(context, node, self._once)

    def _edges_of(self, context: OpContext) -> Edges:
        module = "symbols" if context.is_symbolic else "storages"
        with self._lock:
            if module not in self._edges:
                found = importlib.import_module(f".{module}", __package__)
                self._edges[module] = found.Edges(self.graph, self._skips)
            return self._edges[module]

    def reset(self) -> None:
        self.reset_evidence()
        with self._lock:
            self.graph._clear()
            for edges in self._edges.values():
                edges.reset()
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


class Edges(Protocol):
    """One way to find edges."""

    def trace(self, context: OpContext, node: Node, once: bool) -> None:
        """Called in an analysis; schedules the routines that add the edges of an operator."""

    def reset(self) -> None:
        """The graph was emptied."""
