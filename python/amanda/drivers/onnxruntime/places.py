"""Places: where in the program that was exported an operator of an optimized graph comes from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from amanda.drivers.onnxruntime.exporter import exported_of
from amanda.drivers.onnxruntime.protos import reads


class Place(NamedTuple):
    module_path: str = ""  # "encoder.layer.0"
    source: str = ""  # "model.py:12"


class Places:
    """The places of the operators of a graph that ONNX Runtime made of another.

    An optimizer drops metadata, but keeps the names of values that it does not fuse away. So an operator stands for the
    written nodes between its values and the next ones that are left. An operator that it inserts on the way to such a
    value belongs to that value's operator.
    """

    def __init__(self, written: Any, optimized: Any) -> None:
        self._producers = {name: node for node in written.node for name in node.output if name}
        self._kept = {name for node in optimized.node for name in node.output} | {each.name for each in written.input}
        self._covered: dict[str, Sequence[Any]] = {}  # by the first value that an operator makes
        readers: dict[str, Any] = {}
        for node in reversed(optimized.node):
            known = [name for name in node.output if name in self._producers]
            found: dict[str, Any] = {}
            for name in known:
                self._walk(name, found)
            covered = list(found.values())[::-1]
            if not known:
                reader = next((readers[name] for name in node.output if name in readers), None)
                covered = list(self._covered.get(_key(reader), ())) if reader is not None else []
            self._covered[_key(node)] = covered
            readers.update((name, node) for name in reads(node))

    def of(self, node: Any) -> Place:
        covered = list(reversed(self._covered.get(_key(node), ())))
        for each in covered:
            exported = exported_of(each)
            if exported is not None and exported.fx_node:
                return Place(exported.module_path, exported.source)
        name = next((each.name for each in covered if each.name), node.name)
        return Place(_module_of(name))

    def written(self, node: Any) -> Any:
        """The written node of an operator that has its type; None if there is none."""
        found = next((self._producers[name] for name in node.output if name in self._producers), None)
        return found if found is not None and found.op_type == node.op_type else None

    def _walk(self, name: str, found: dict[str, Any]) -> None:
        todo = [name]
        while todo:
            node = self._producers.get(todo.pop())
            if node is not None and _key(node) not in found:
                found[_key(node)] = node
                todo += [each for each in reads(node) if each not in self._kept]


def _module_of(name: str) -> str:
    """The module in the name of a node of exports by TorchScript: "/encoder/fc1/Gemm". Those in a Sequential have its name
    once more: "/layers/layers.0/Gemm"."""
    path: list[str] = []
    for part in name.strip("/").split("/")[:-1]:
        if path and part.startswith(f"{path[-1]}."):
            path.pop()
        path.append(part)
    return ".".join(path)


def _key(node: Any) -> str:
    return next((name for name in node.output if name), "")
