"""Weights: whether the matrices that nodes compute with are those of the program."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from . import libraries
from .arrays import Array
from .calls import Call, Ran
from .distance import distance
from .model_file import ModelFile
from .results import reads


class Weights:
    """The constants of a file. They are read where a row asks for them."""

    def __init__(self, file: ModelFile) -> None:
        self._file = file
        self._constants = {each.name: each for each in file.proto.graph.initializer}

    def note(self, nodes: Sequence[Any], ran: Ran, call: Call, tolerance: float) -> str:
        """The names of the operator's parameters that differ from the constant of their shape which the nodes read. An
        exporter may have transposed it. Vectors are left out, as exporters fold them into others."""
        arrays = [self._array(name) for node in nodes for name in reads(node) if name in self._constants]
        differ = []
        for name, wanted in _matrices(ran, call):
            errors = [
                distance(array, each).error
                for array in arrays
                for each in (wanted, wanted.swapaxes(0, -1))
                if array.shape == each.shape
            ]
            if errors and min(errors) > tolerance:
                differ.append(f"{name} differs by {min(errors):.2g}")
        return ", ".join(differ)

    def _array(self, name: str) -> Array:
        found: Array = libraries.onnx().numpy_helper.to_array(self._constants[name], base_dir=self._file.folder)
        return found


def _matrices(ran: Ran, call: Call) -> Iterator[tuple[str, Array]]:
    known = {**dict(call.model.named_buffers()), **dict(call.model.named_parameters())}
    for name in sorted(ran.parameters):
        tensor = known.get(call.path_inside(name))
        if tensor is not None and tensor.dim() >= 2:
            yield name, call.store.kept(tensor).array
