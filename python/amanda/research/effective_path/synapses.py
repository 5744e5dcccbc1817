"""Synapses: which inputs each output of an operator is a sum of, and which of them are critical."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from amanda import ops

Inputs = Mapping[str, Any]  # an operator's inputs by the names of its schema
Sources = Callable[[Tensor], tuple[Tensor, Tensor]]


class UnknownError(Exception):
    """It is not known what an operator's outputs are sums of; says why."""


@dataclasses.dataclass(eq=False)
class Synapses:
    """The synapses of one operator. Outputs, inputs and weights are numbered as in their flat tensors.

    A weighted operator has a weight for each channel and each of its synapses, channels being dimension 1 of `shape`.
    """

    shape: Sequence[int]  # of the output
    values: Tensor  # the inputs, flat
    fan_in: int  # synapses of each output
    sources: Sources  # of outputs: the inputs of their synapses, and which are not padding, both (outputs, fan_in)
    parts: Sequence[Sequence[int]]  # the shapes of the tensors that make up `values`; they may broadcast to `shape`
    weight: Tensor | None = None  # (channels, ...), fan_in elements each
    largest: Tensor | None = None  # of each output the one input that it takes: it is a maximum, not a sum

    def contributions(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """The inputs of these outputs' synapses, and the amount that each adds to the output. Both are (outputs,
        fan_in)."""
        index, inside = self.sources(outputs)
        if self.largest is not None:
            return index, ((index == self.largest[outputs, None]) & inside).double()
        added = self.values[index].double() * inside
        return index, added if self.weight is None else added * self.weight.flatten(1)[self.channels(outputs)]

    def split(self, mask: Tensor, dims: int) -> list[Tensor]:
        """The mask of `values` as those of the tensors that make them up, for a node with results of `dims` dimensions."""
        if len(self.parts) > 1:
            halves = mask.view(len(self.parts), *self.shape)
            return [own.sum_to_size(part) for own, part in zip(halves, self.parts, strict=True)]
        own = mask.view(tuple(self.parts[0]))
        return [own.unsqueeze(-2) if own.dim() == dims - 1 else own]  # pooling in 1-D runs in 2-D

    def channels(self, outputs: Tensor) -> Tensor:
        return outputs // math.prod(self.shape[2:]) % self.shape[1]


def critical(contributions: Tensor, theta: float) -> Tensor:
    """For each row the smallest set of positive contributions that reaches `theta` of the sum of all.

    If that sum is not positive, the sum of the positive ones is used. Among equal contributions, the first ones are
    taken.
    """
    ranked, order = contributions.clamp(min=0).sort(dim=1, descending=True, stable=True)
    reached = ranked.cumsum(1)
    positive = reached[:, -1:]
    total = positive + contributions.clamp(max=0).sum(1, keepdim=True)
    goal = theta * torch.where(total > 0, total, positive)
    before = torch.nn.functional.pad(reached[:, :-1], (1, 0))
    return torch.zeros_like(ranked, dtype=torch.bool).scatter_(1, order, (before < goal) & (ranked > 0))


def _windows(
    shape: Sequence[int],
    x: Sequence[int],
    kernel: Sequence[int] = (),
    stride: Sequence[int] = (),
    padding: Sequence[int] = (),
    dilation: Sequence[int] = (),
    groups: int = 1,
) -> Sources:
    """An output of a convolution, of a pooling (a group for each channel), or of a linear layer (without a kernel)."""
    width = x[1] // groups  # input channels of a group

    def sources(outputs: Tensor) -> tuple[Tensor, Tensor]:
        sample, channel, *place = torch.unravel_index(outputs, tuple(shape))
        first = sample * x[1] + channel // (shape[1] // groups) * width
        index = first[:, None] + torch.arange(width, device=outputs.device)
        inside = torch.ones_like(index, dtype=torch.bool)
        for at, size, k, s, p, d in zip(place, x[2:], kernel, stride, padding, dilation, strict=True):
            position = (at * s - p)[:, None] + torch.arange(k, device=outputs.device) * d
            index = (index[:, :, None] * size + position[:, None]).flatten(1)
            inside = (inside[:, :, None] & ((position >= 0) & (position < size))[:, None]).flatten(1)
        return index * inside, inside

    return sources


def _each(values: Sequence[int] | int, dims: int) -> list[int]:
    values = [values] if isinstance(values, int) else list(values)
    return values * dims if len(values) == 1 else values


def _product(shape: Sequence[int], inputs: Inputs, name: str) -> Synapses:
    left, right = ops.factors[name]
    x, weight = inputs[left], inputs[right] if name == "linear" else inputs[right].mT
    if weight.dim() != 2:
        raise UnknownError("its weight is not a matrix")
    rows, width = x.numel() // x.shape[-1], x.shape[-1]
    shape = (rows, weight.shape[0])
    return Synapses(shape, x.flatten(), width, _windows(shape, (rows, width)), [(rows, width)], weight.double())


def _convolution(shape: Sequence[int], inputs: Inputs, name: str) -> Synapses:
    x, weight = inputs["input"], inputs["weight"].double()
    kernel = weight.shape[2:]
    stride, dilation = _each(inputs["stride"], len(kernel)), _each(inputs["dilation"], len(kernel))
    padding = inputs["padding"]
    if isinstance(padding, str):
        same = padding == "same"
        padding = [d * (k - 1) // 2 * same for k, d in zip(kernel, dilation, strict=True)]
    padding = _each(padding, len(kernel))
    sources = _windows(shape, x.shape, kernel, stride, padding, dilation, inputs["groups"])
    return Synapses(shape, x.flatten(), weight[0].numel(), sources, [x.shape], weight)


def _pooling(shape: Sequence[int], inputs: Inputs, name: str) -> Synapses:
    x, dims = inputs["self"], int(name[-2])
    if name.startswith("adaptive"):
        if any(size % out for size, out in zip(x.shape[2:], shape[2:], strict=True)):
            raise UnknownError(
                f"windows of {list(x.shape[2:])} to {list(shape[2:])} differ in size; give sizes that divide"
            )
        kernel = stride = [size // out for size, out in zip(x.shape[2:], shape[2:], strict=True)]
        padding = [0] * dims
    else:
        kernel, padding = _each(inputs["kernel_size"], dims), _each(inputs["padding"], dims)
        stride = _each(inputs["stride"], dims) if inputs["stride"] else kernel
    dilation = _each(inputs.get("dilation", 1), dims)
    sources = _windows(shape, x.shape, kernel, stride, padding, dilation, groups=shape[1])
    found = Synapses(shape, x.flatten(), math.prod(kernel), sources, [x.shape])
    if name.startswith("max"):
        pool = getattr(torch.nn.functional, name)
        taken = pool(x, kernel, stride, padding, dilation, inputs["ceil_mode"], return_indices=True)[1]
        planes = torch.arange(x.shape[0] * x.shape[1], device=x.device).view(*x.shape[:2], *[1] * dims)
        found.largest = (planes * math.prod(x.shape[2:]) + taken).flatten()
    return found


def _reduction(shape: Sequence[int], inputs: Inputs, name: str) -> Synapses:
    x = inputs["self"]
    dims = [dim % x.dim() for dim in _each(inputs.get("dim") or range(x.dim()), 1)]
    if 0 in dims:
        raise UnknownError("it mixes samples")
    fan_in = math.prod(x.shape[dim] for dim in dims)
    numbers = torch.arange(x.numel(), device=x.device).view(x.shape)
    table = numbers.movedim(dims, list(range(-len(dims), 0))).reshape(-1, fan_in)

    def sources(outputs: Tensor) -> tuple[Tensor, Tensor]:
        return table[outputs], torch.ones_like(table[outputs], dtype=torch.bool)

    return Synapses(shape, x.flatten(), fan_in, sources, [x.shape])


def _sum(shape: Sequence[int], inputs: Inputs, name: str) -> Synapses:
    """Two synapses for each output. The inputs are those of the left operand, then those of the right one."""
    left, right = inputs["self"].expand(shape), (inputs["other"] * inputs["alpha"]).expand(shape)
    values = torch.cat([left.flatten(), right.flatten() if name == "add" else -right.flatten()])

    def sources(outputs: Tensor) -> tuple[Tensor, Tensor]:
        index = torch.stack([outputs, outputs + left.numel()], 1)
        return index, torch.ones_like(index, dtype=torch.bool)

    return Synapses(shape, values, 2, sources, [inputs["self"].shape, inputs["other"].shape])


known: dict[str, Callable[[Sequence[int], Inputs, str], Synapses]] = {
    **dict.fromkeys((*ops.linear, "addmm", "mm", "matmul"), _product),
    **dict.fromkeys(ops.convolution, _convolution),
    **dict.fromkeys((f"{kind}_pool{d}d" for kind in ("max", "avg", "adaptive_avg") for d in (1, 2, 3)), _pooling),
    **dict.fromkeys(("mean", "sum"), _reduction),
    **dict.fromkeys(("add", "sub"), _sum),
}
"""Functions by an operator's name. They return its synapses, and get its output's shape, its inputs and that name."""
