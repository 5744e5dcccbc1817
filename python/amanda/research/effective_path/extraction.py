"""Extraction: what is known of a model's operators while paths of its samples are extracted."""

from __future__ import annotations

import collections
import dataclasses
from typing import Any

import torch
from torch import Tensor

from amanda import Error
from amanda.research.effective_path.masks import AGAINST
from amanda.research.effective_path.path import Layer, Path
from amanda.research.effective_path.synapses import Synapses, critical
from amanda.toolkit.places import Place

CHUNK = 2**20
"""Synapses that are ranked at once."""


@dataclasses.dataclass(eq=False)
class Execution:
    """One execution of an operator: what its backward operators need."""

    extraction: Extraction
    place: Place
    inputs: dict[str, Any] = dataclasses.field(default_factory=dict)
    live: list[str] = dataclasses.field(default_factory=list)  # inputs that depend on the samples
    sign: Tensor = dataclasses.field(default_factory=lambda: torch.empty(0))  # of the output, once it has run
    _versions: dict[str, int] = dataclasses.field(default_factory=dict)

    def keep(self, inputs: dict[str, Any], in_place: bool) -> None:
        for name, value in inputs.items():
            if isinstance(value, Tensor):
                if self.extraction.is_on_the_way(value.grad_fn):
                    self.live.append(name)
                value = value.detach()
                if in_place and not self._versions:
                    value = value.clone()  # the first one is overwritten
                self._versions[name] = value._version
            self.inputs[name] = value

    def unchanged(self, where: str) -> dict[str, Any]:
        """The inputs.

        Raises:
            amanda.Error: the model has overwritten one since.
        """
        for name, version in self._versions.items():
            if self.inputs[name]._version != version:
                raise Error(
                    f"[effective_path] the input '{name}' of {where} was overwritten later; make what writes to it out of "
                    "place"
                )
        return self.inputs


class Extraction:
    """The layers found so far: those of all samples together, from the model's output on."""

    def __init__(self, x: Tensor, theta: float) -> None:
        self.samples, self._theta = len(x), theta
        self._on_the_way = {x.grad_fn: True}  # for each node of the graph whether it leads to the samples
        self._found: list[list[Layer]] = []  # of each execution, from the last one on, the layer of each sample

    def is_on_the_way(self, node: torch.autograd.graph.Node | None) -> bool:
        """True if what the node computes the gradient of depends on the samples."""
        if node is None:
            return False
        if node not in self._on_the_way:
            self._on_the_way[node] = any(self.is_on_the_way(other) for other, _ in node.next_functions)
        return self._on_the_way[node]

    def choose(self, place: Place, found: Synapses, shape: torch.Size, mask: Tensor, wanted: Tensor) -> Tensor:
        """Puts an operator's critical synapses on the paths. Returns the mask of its inputs, flat.

        Arguments:
            shape: of the operator's output.
            mask, wanted: of its neurons, flat.
        """
        samples, size = self.samples, mask.numel() // self.samples
        active = mask > 0
        reached = mask.new_zeros(found.values.numel(), dtype=torch.bool)
        more = torch.zeros_like(reached)
        numbers = [mask.new_zeros(0, dtype=torch.int64)]
        weights = None if found.weight is None else mask.new_zeros((samples, found.weight.numel()), dtype=torch.bool)
        for outputs in active.nonzero().squeeze(1).split(max(1, CHUNK // found.fan_in)):
            index, added = found.contributions(outputs)
            if found.largest is None:
                added = added * wanted[outputs, None]
            chosen = critical(added, self._theta)
            rows, synapses = chosen.nonzero(as_tuple=True)
            reached[index[chosen]] = True
            more[index[chosen] if found.largest is None else index[chosen][mask[outputs[rows]] >= 1]] = True
            numbers.append(outputs[rows] * found.fan_in + synapses)
            if weights is not None:
                weights[outputs[rows] // size, found.channels(outputs[rows]) * found.fan_in + synapses] = True
        every, width = torch.cat(numbers), size * found.fan_in
        own = (every % width).split(torch.bincount(every // width, minlength=samples).tolist())
        neurons = active.view(samples, *(shape[1:] if shape[0] == samples else shape))
        like = None if found.weight is None else found.weight.shape
        self._found.append(
            [
                Layer(place, neurons[i], own[i], found.fan_in, None if weights is None else weights[i].view(like))
                for i in range(samples)
            ]
        )
        return torch.where(more, 1.0, AGAINST) * reached

    def paths(self, mask: Tensor) -> list[Path]:
        """One for each sample. `mask` is that of the samples."""
        runs: collections.Counter[int | None] = collections.Counter(layers[0].place.op_id for layers in self._found)
        keys = []
        for layers in self._found:  # from the last one on
            runs[layers[0].place.op_id] -= 1
            keys.append((layers[0].place.op_id, runs[layers[0].place.op_id]))
        return [
            Path({key: layers[i] for key, layers in zip(keys[::-1], self._found[::-1], strict=True)}, mask[i] > 0)
            for i in range(self.samples)
        ]
