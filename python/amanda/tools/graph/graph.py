"""Graph: operators, and the tensors that flow between them."""

from __future__ import annotations

import collections
import dataclasses
import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Literal

from amanda.toolkit import locks, notebooks
from amanda.toolkit.frames import line_of_code

if TYPE_CHECKING:
    import networkx

NodeId = int | str
MOST_SHOWN = 20  # nodes, in notebooks


@dataclasses.dataclass(frozen=True, eq=False)
class Node:
    """An operator, or a tensor from outside, which no observed operator made.

    An outside tensor is named after the first operator that consumes it and the argument there.
    """

    id: NodeId  # an operator's context.op_id; else a string made of the first consumer's id and the position there
    # A parameter is an nn.Parameter, or a variable of TensorFlow; an input is any other tensor.
    kind: Literal["operator", "input", "parameter"]
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
        self._lock = locks.rlock()  # of everything below
        self._nodes: dict[NodeId, Node] = {}
        self._producers: dict[Node, dict[Node, set[int]]] = collections.defaultdict(dict)
        self._consumers: dict[Node, dict[Node, set[int]]] = collections.defaultdict(dict)  # the same sets of positions

    def __repr__(self) -> str:
        nodes, edges = list(self), self._edges()
        operators = sum(node.kind == "operator" for node in nodes)
        outside = len(nodes) - operators
        return f"<amanda Graph: operators: {operators}, tensors from outside: {outside}, edges: {len(edges)}>"

    def _repr_html_(self) -> str:
        """For notebooks: the first nodes, in the order of their first run, each with where its inputs come from."""
        nodes = list(self)
        numbers = {node: str(number) for number, node in enumerate(nodes)}
        rows = [([numbers[node], *self._texts(node, numbers)], "") for node in nodes[:MOST_SHOWN]]
        more = f"and {len(nodes) - MOST_SHOWN:,} more nodes; to_dot() has all" if len(nodes) > MOST_SHOWN else ""
        headings = ["", "node", "module", "line", "inputs from"]
        table = notebooks.table(headings, ["right"] + ["left"] * 4, rows, more) if nodes else ""
        return notebooks.together([notebooks.heading(repr(self).strip("<>")), table])

    def _texts(self, node: Node, numbers: Mapping[Node, str]) -> list[str]:
        kind = "" if node.kind == "operator" else f" ({node.kind})"
        inputs = ", ".join(numbers.get(other, other.name) for other in self.producers(node))
        return [f"{node.name}{kind}", node.module_path, line_of_code(node.source), inputs]

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
                "[graph] to_networkx needs networkx: pip install 'amanda-nn[plot]'; to_dot() and to_json() need nothing"
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


def _attributes(node: Node) -> dict[str, str]:
    return {"kind": node.kind, "name": node.name, "module_path": node.module_path, "source": node.source}
