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
        """The operations of a node; None if it may multiply and was not counted, or runs other nodes."""
        return None if node.op_type in self.uncounted or bodies(node) else self.by_node.get(i, 0)


def file_flops(file: ModelFile, feeds: dict[str, Any]) -> FileFlops:
    """Counts them in a run of the nodes as they are written.

    Raises:
        ValueError: ONNX Runtime cannot load or run the file.
    """
    proto = type(file.proto)()
    proto.CopyFrom(file.proto)
    for i, node in enumerate(proto.graph.node):
        del node.metadata_props[:]
        node.name = f"/{i}/{node.op_type}"  # the driver reads the module off the name

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
