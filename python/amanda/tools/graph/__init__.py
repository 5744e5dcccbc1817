"""GraphTracing: the program as a graph of which operator's results each operator consumes."""

from amanda.toolkit.places import GroupBy

from .graph import Graph, Node, NodeId
from .graph_tracing import GraphTracing, Row

__all__ = ["Graph", "GraphTracing", "GroupBy", "Node", "NodeId", "Row"]
