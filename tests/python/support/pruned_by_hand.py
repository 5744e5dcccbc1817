"""What tests of pruning share: a small network, its training, and masks that PyTorch's own `prune` applies."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator

import torch
import torch.nn.functional as F
from tool_regimes import in_regime
from torch.nn.utils import prune


class Network(torch.nn.Module):
    """Convolutions, one with groups and one transposed, and linear layers, of which one is called twice."""

    def __init__(self, activation: Callable[[torch.Tensor], torch.Tensor] = F.relu):
        super().__init__()
        self.activation = activation
        self.conv = torch.nn.Conv2d(3, 8, 3)
        self.grouped = torch.nn.Conv2d(8, 6, 3, groups=2, bias=False)
        self.up = torch.nn.ConvTranspose2d(6, 4, 2, groups=2)
        self.twice = torch.nn.Linear(5, 5)
        self.head = torch.nn.Linear(4 * 5 * 5, 7)

    def forward(self, x):
        x = self.up(self.activation(self.grouped(self.activation(self.conv(x)))))
        x = self.activation(self.twice(self.activation(self.twice(x))))
        return self.head(x.flatten(1))


LAYERS = "conv", "grouped", "up", "twice", "head"


def layers(model: torch.nn.Module) -> dict[str, torch.nn.Module]:
    return {name: model.get_submodule(name) for name in LAYERS}


def batches(steps: int) -> Iterable[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(5, 3, 8, 8, generator=generator) for _ in range(steps)]


def train(
    model: torch.nn.Module,
    steps: int = 20,
    *,
    run: Callable[..., torch.Tensor] | None = None,
    before: Callable[[int], object] = lambda step: None,
    after: Callable[[int], object] = lambda step: None,
) -> list[torch.Tensor]:
    """Losses. `run` stands for the model; `before` and `after` are called in each step, around forward to step()."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01)
    losses = []
    for step, x in enumerate(batches(steps)):
        optimizer.zero_grad()
        before(step)
        losses.append((model if run is None else run)(x).float().square().mean())
        losses[-1].backward()
        optimizer.step()
        after(step)
    return [loss.detach() for loss in losses]


def results(model: torch.nn.Module) -> list[torch.Tensor]:
    """Parameters and gradients, by the names that they had before torch's prune came."""
    named = {name.removesuffix("_orig"): parameter for name, parameter in model.named_parameters()}
    return [*(named[name] for name in sorted(named)), *(named[name].grad for name in sorted(named))]


def dense(module: torch.nn.Module) -> torch.Tensor:
    """The weight without its mask."""
    return getattr(module, "weight_orig", module.weight).detach()


def mask_by_torch(module: torch.nn.Module, mask: torch.Tensor) -> None:
    """In place of the mask that it has: torch would multiply the two."""
    if prune.is_pruned(module):
        module.weight_mask = mask
        module.weight = module.weight_orig * mask
    else:
        prune.custom_from_mask(module, "weight", mask)


STEPS = {"autocast": 6, "checkpointing": 6, "compiled code": 6, "distributed training": 20}
"""How long tests train in each regime: once long enough for a difference to grow."""


@contextlib.contextmanager
def regime_by_hand(name: str, model: torch.nn.Module) -> Iterator[Callable[..., object]]:
    """What a model that is written by hand runs in to have the bits of one that Amanda edits: eager code."""
    if name == "autocast":
        with in_regime(name, model) as run:
            yield run
    else:
        yield model


def l1_mask(weight: torch.Tensor, sparsity: float) -> torch.Tensor:
    """What torch.nn.utils.prune would keep."""
    module = torch.nn.Module()
    module.weight = torch.nn.Parameter(weight.detach().clone())
    prune.l1_unstructured(module, "weight", amount=sparsity)
    return module.weight_mask


def search_of_six(weight: torch.Tensor, dim: int) -> torch.Tensor:
    """The best 2:4 mask, four by four, by trying all six patterns."""
    patterns = [pattern for pattern in itertools.product((0, 1), repeat=4) if sum(pattern) == 2]
    patterns.sort(reverse=True)
    mask = torch.zeros_like(weight)
    rest = [range(size) for d, size in enumerate(weight.shape) if d != dim % weight.dim()]
    for place in itertools.product(*rest):
        row = [*place]
        row.insert(dim % weight.dim(), slice(None))
        values = weight[tuple(row)].detach().abs()
        kept = torch.zeros_like(values)
        for start in range(0, len(values), 4):
            four = values[start : start + 4]
            sums = [
                sum((v for v, p in zip(four, pattern, strict=False) if p), four.new_zeros(())) for pattern in patterns
            ]
            best = max(range(6), key=lambda i: sums[i].item())
            kept[start : start + 4] = kept.new_tensor(patterns[best][: len(four)])
        mask[tuple(row)] = kept
    return mask
