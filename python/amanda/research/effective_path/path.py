"""Path: the neurons, synapses and weights that made a network predict a class, layer by layer."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor

from amanda.toolkit.arguments import check_choice
from amanda.toolkit.places import Place

Part = Literal["synapses", "neurons", "weights"]
Measure = Literal["jaccard", "containment"]


@dataclasses.dataclass(eq=False, frozen=True)
class Layer:
    """One execution of an operator that chooses among its inputs."""

    place: Place
    neurons: Tensor  # bool, in the shape of the output without samples: outputs on the path
    # Of all that the outputs have, the numbers of those on the path, ascending: output * fan_in + input.
    synapses: Tensor
    fan_in: int  # synapses that an output has
    weights: Tensor | None  # bool, in the weight's shape: weights of synapses on the path; None if there are no weights

    def active(self, part: Part) -> int:
        if part == "synapses":
            return len(self.synapses)
        mask: Tensor | None = getattr(self, part)
        return 0 if mask is None else int(mask.sum())

    def size(self, part: Part) -> int:
        if part == "synapses":
            return int(self.neurons.numel()) * self.fan_in
        mask: Tensor | None = getattr(self, part)
        return 0 if mask is None else int(mask.numel())

    def common(self, other: Layer, part: Part) -> int:
        if part == "synapses":
            return int(torch.isin(self.synapses, other.synapses, assume_unique=True).sum())
        mask: Tensor | None = getattr(self, part)
        return 0 if mask is None else int((mask & getattr(other, part)).sum())


@dataclasses.dataclass(eq=False, frozen=True)
class Path:
    """The effective path of one sample, from `EffectivePath.extract`; ``path | other`` is the union, such as the path
    of a class.

    `layers` are in the order of the program, by operator id and the number of the execution. `inputs` is a bool mask in the
    sample's shape: the inputs on the path. Do not change its tensors.
    """

    layers: dict[tuple[int | None, int], Layer]
    inputs: Tensor

    def density(self, part: Part = "synapses") -> float:
        """The share of all synapses, neurons or weights that is on the path, 0 to 1."""
        check_choice("[effective_path] part=", part, get_args(Part))
        layers = self.layers.values()
        return sum(layer.active(part) for layer in layers) / max(1, sum(layer.size(part) for layer in layers))

    def similarity(
        self,
        other: Path,
        part: Part = "synapses",
        measure: Measure = "jaccard",
        layer_weights: Sequence[float] | None = None,
    ) -> float:
        """The mean of `similarities`, or their sum with these weights.

        Raises:
            ValueError: the paths are of different programs or of samples of different shapes; an argument is not as above.
        """
        found = self.similarities(other, part, measure)
        if layer_weights is None:
            return sum(found) / max(1, len(found))
        if len(layer_weights) != len(found):
            raise ValueError(
                f"[effective_path] layer_weights= has one for each of {len(found)} layers; got {layer_weights!r}"
            )
        return sum(weight * value for weight, value in zip(layer_weights, found, strict=True))

    def similarities(self, other: Path, part: Part = "synapses", measure: Measure = "jaccard") -> list[float]:
        """The similarity of the two paths in each layer, 0 to 1.

        Arguments:
            part: what is compared. Without weights, an operator is left out of "weights".
            measure: "jaccard": what the paths share, of all that is on either. "containment": of what is on this one. The
                path of a class is much larger than that of an image, so that its size dominates their Jaccard index. What
                both lack is equal: 1.
        """
        check_choice("[effective_path] part=", part, get_args(Part))
        check_choice("[effective_path] measure=", measure, get_args(Measure))
        _check_comparable(self, other)
        found = []
        for key, ours in self.layers.items():
            if ours.size(part):
                theirs = other.layers[key]
                common, total = ours.common(theirs, part), ours.active(part)
                if measure == "jaccard":
                    total += theirs.active(part) - common
                found.append(common / total if total else 1.0)
        return found

    def __or__(self, other: Path) -> Path:
        return Path.union([self, other]) if isinstance(other, Path) else NotImplemented

    @staticmethod
    def union(paths: Sequence[Path]) -> Path:
        """The union of these paths; faster than ``|`` for many.

        Raises:
            ValueError: there is none, or they are paths of different programs or of samples of different shapes.
        """
        if not paths:
            raise ValueError("[effective_path] a union takes at least one path; got none")
        first, *others = paths
        for other in others:
            _check_comparable(first, other)
        layers = {}
        for key, layer in first.layers.items():
            every = [path.layers[key] for path in paths]
            layers[key] = dataclasses.replace(
                layer,
                neurons=torch.stack([one.neurons for one in every]).any(0),
                synapses=torch.cat([one.synapses for one in every]).unique(),
                weights=_any([one.weights for one in every]),
            )
        return Path(layers, torch.stack([path.inputs for path in paths]).any(0))


def _any(masks: list[Tensor | None]) -> Tensor | None:
    known = [mask for mask in masks if mask is not None]
    return torch.stack(known).any(0) if known else None


def _check_comparable(one: Path, other: Path) -> None:
    if one.layers.keys() != other.layers.keys():
        raise ValueError(
            "[effective_path] the two paths are of different programs: "
            f"{len(one.layers.keys() ^ other.layers.keys())} layers are only in one of them"
        )
    for key, layer in one.layers.items():
        shapes = layer.neurons.shape, other.layers[key].neurons.shape
        if shapes[0] != shapes[1]:
            raise ValueError(
                f"[effective_path] the two paths are of samples of different shapes: {layer.place.name} in "
                f"{layer.place.module_path} has outputs of {list(shapes[0])} and of {list(shapes[1])}"
            )
