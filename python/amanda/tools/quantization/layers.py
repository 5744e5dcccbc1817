"""The layer, or the layers, that a product with a weight is: what quantized kernels run."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from amanda import Operator

PRODUCTS = ("matmul", "mm", "addmm", "bmm", "_grouped_mm")  # layers, if the right factor is a parameter


class Layer(NamedTuple):
    """The first dimension of the weight is that of the results."""

    input: torch.Tensor
    weight: torch.Tensor
    bias: torch.Tensor | None

    def run(self, kernel: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        """Calls `kernel`, which takes a batch of float32. The result has the dtype that the operator's would have."""
        alone = self.input.dim() < self.weight.dim()  # no batch
        found = kernel(self.input[None].float() if alone else self.input.float())
        return (found[0] if alone else found).to(_result_dtype(self.input))


class Experts(NamedTuple):
    """Layers without bias, each with an input of its own; of `F.grouped_mm` and `torch.bmm`."""

    layers: Sequence[Layer]
    # The rows of the result, which has the layers' results one after another. None if the result has one dimension
    # more, as that of bmm has.
    rows: int | None

    def run(self, kernel: Callable[[int, torch.Tensor], torch.Tensor]) -> torch.Tensor:
        """Calls ``kernel(layer, rows of its input)``, with float32, for each layer that has any."""
        first = self.layers[0].input
        results = [
            kernel(i, layer.input.float()) if len(layer.input) else layer.input.new_empty(0, len(layer.weight)).float()
            for i, layer in enumerate(self.layers)
        ]
        if self.rows is None:
            return torch.stack(results).to(_result_dtype(first))
        result = torch.cat(results)
        behind = result.new_zeros(self.rows - len(result), result.shape[1])
        return torch.cat([result, behind]).to(first.dtype)  # autocast leaves grouped_mm alone


def layer_of(op: Operator, inputs: Sequence[Any]) -> Layer | None:
    """The layer; None if these inputs make no layer, such as two vectors, or ``alpha * x @ weight``."""
    if op.__name__ not in PRODUCTS:
        layer = Layer(*inputs[:3])
        return layer if layer.weight.dim() >= 2 and layer.weight.is_floating_point() else None
    if op.__name__ == "_grouped_mm":
        return None
    bias, x, weight, *factors = inputs if op.__name__ == "addmm" else (None, *inputs)
    if weight.dim() != 2 or not weight.is_floating_point() or any(factor != 1 for factor in factors):
        return None
    return Layer(x, weight.t(), bias) if bias is None or bias.shape == weight.shape[1:] else None


def experts_of(op: Operator, inputs: Sequence[Any]) -> Experts | None:
    """The layers; None if these inputs make no such layers."""
    if op.__name__ not in ("matmul", "bmm", "_grouped_mm"):
        return None
    x, weights, *rest = inputs
    if weights.dim() != 3 or not weights.is_floating_point() or x.dim() not in (2, 3):
        return None
    ends, *others = rest if op.__name__ == "_grouped_mm" else [None]
    if any(other is not None for other in others):  # a bias, another dtype
        return None
    if ends is not None:
        return _by_rows(x, weights, ends) if x.dim() == 2 else None
    if x.dim() == 3 and len(x) not in (1, len(weights)):
        return None
    each = x.expand(len(weights), *x.shape[-2:])
    return Experts([Layer(one, weight.t(), None) for one, weight in zip(each, weights, strict=True)], None)


def _by_rows(x: torch.Tensor, weights: torch.Tensor, ends: torch.Tensor) -> Experts:
    """The rows of each expert end where `ends` says. The rows behind the last end are undefined; here they are
    zero."""
    limits = [0, *ends.tolist()]
    groups = [x[begin:end] for begin, end in itertools.pairwise(limits)]
    return Experts([Layer(one, weight.t(), None) for one, weight in zip(groups, weights, strict=True)], len(x))


def _result_dtype(input: torch.Tensor) -> torch.dtype:
    """The dtype of a product that autocast knows."""
    casts = torch.is_autocast_enabled(input.device.type)
    return torch.get_autocast_dtype(input.device.type) if casts else input.dtype
