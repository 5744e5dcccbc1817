"""The floating point operations of a file's nodes."""

from __future__ import annotations

import concurrent.futures
from typing import Any, NamedTuple

from amanda import apply
from amanda.tools.flops import Flops

from .model_file import ModelFile
from .results import bodies


class FileFlops(NamedTuple):
    """The operations of nodes."""

    by_node: dict[int, int]  # by position, those that have products
    uncounted: dict[str, int]  # types of nodes that may multiply and were not counted, and how many ran

    @property
    def total(self) -> int | None:
        """None if some nodes may multiply and were not counted."""
        return None if self.uncounted else sum(self.by_node.values())

    def of(self, i: int, node: Any) -> int | None:
        """The operations of a node, and of those in its bodies; None if one of them may multiply and was not counted."""
        inside = _inside(node)
        is_unknown = bool(inside) and node.op_type not in _SHOWN
        if is_unknown or any(each.op_type in self.uncounted for each in (node, *inside)):
            return None
        return self.by_node.get(i, 0)


_SHOWN = ("If", "Loop", "Scan")  # whose bodies are


def file_flops(file: ModelFile, feeds: dict[str, Any]) -> FileFlops:
    """Counts them in a run of the nodes as they are written.

    Raises:
        ValueError: ONNX Runtime cannot load or run the file.
    """
    proto = type(file.proto)()
    proto.CopyFrom(file.proto)
    for i, node in enumerate(proto.graph.node):
        for each in (node, *_inside(node)):
            del each.metadata_props[:]
            each.name = f"/{i}/{each.op_type}"  # the driver reads the module off the name

    def run() -> Flops:
        flops = Flops()
        session = file.session(proto)
        with apply(flops):
            file.run(session, file.outputs, feeds)
        return flops

    with concurrent.futures.ThreadPoolExecutor(1) as other:  # where no tool of the program is shown the nodes
        flops = other.submit(run).result()
    return FileFlops(
        {int(row.module_path): row.flops for row in flops.rows()},
        {name.removeprefix("onnx::"): count for name, count in flops.uncounted_products.items()},
    )


def _inside(node: Any) -> list[Any]:
    """The nodes of its bodies, and of theirs."""
    return [found for body in bodies(node) for each in body.node for found in (each, *_inside(each))]
