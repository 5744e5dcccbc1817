"""GraphTracing: the program as a graph of which operator's results each operator consumes."""

from amanda.reports.places import GroupBy
from amanda.tools.graph.graph import Graph, Node, NodeId
from amanda.tools.graph.graph_tracing import GraphTracing, Row

__all__ = ["Graph", "GraphTracing", "GroupBy", "Node", "NodeId", "Row"]
