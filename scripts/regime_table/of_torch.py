"""Programs of PyTorch: one network in each regime."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from regime_table.program import Model, Program, Regime, plain


class Net(nn.Module):
    """A convolution, attention and linear layers: most tools find what they work on."""

    def __init__(self, middle: nn.Module | None = None) -> None:
        super().__init__()
        self.conv, self.project, self.head = nn.Conv2d(2, 8, 3), nn.Linear(16, 16), nn.Linear(16, 16)
        self.middle = nn.Identity() if middle is None else middle

    def forward(self, x: Tensor) -> Tensor:
        x = self.project(self.middle(self.conv(x).relu().flatten(2)))  # (n, 8, 16)
        heads = x.unflatten(2, (2, 8)).transpose(1, 2)
        attended = (heads @ heads.transpose(2, 3)).softmax(-1) @ heads
        return self.head(attended.transpose(1, 2).flatten(2)).flatten(1)


class Scores(nn.Module):
    """Without attention: there is no path through it."""

    def __init__(self, middle: nn.Module | None = None) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(2, 8, 3), nn.Linear(128, 16)
        self.middle = nn.Identity() if middle is None else middle

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.middle(self.conv(x).relu().flatten(2)).flatten(1))


class Sparse(nn.Module):
    """A sparse parameter, as a factor, and sparse results that are made of it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.eye(8).to_sparse())

    def forward(self, x: Tensor) -> Tensor:
        return (torch.mm(self.weight, x[0]) + torch.sparse.mm(self.weight * 2, x[0]))[None]


NETWORKS = {"net": Net, "scores": Scores}


def _program(model: nn.Module, run: Model) -> Program:
    return Program(model, run, torch.ones(1, 2, 6, 6), lambda result: result.requires_grad and result.sum().backward())


def _in(wrapped: Callable[[nn.Module], Model], middle: Callable[[], nn.Module] | None = None) -> Any:
    def program(network: str) -> Program:
        torch.manual_seed(0)
        model = NETWORKS[network](middle and middle())
        return _program(model, wrapped(model))

    return plain(program)


def _compiled(model: nn.Module) -> Model:
    torch._dynamo.reset()
    return torch.compile(model, backend="aot_eager")


def _checkpointed(model: nn.Module) -> Model:
    return lambda x: checkpoint(model, x, use_reentrant=False)


def _vmapped(model: nn.Module) -> Model:
    return lambda x: torch.func.vmap(model, randomness="different")(x[:, None])[:, 0]


def _forward_mode(model: nn.Module) -> Model:
    return lambda x: sum(torch.func.jvp(model, (x,), (x,)))


@contextlib.contextmanager
def _distributed(network: str) -> Iterator[Program]:
    from torch.distributed.tensor import DTensor, Replicate, distribute_module, init_device_mesh

    with _process_group():
        mesh = init_device_mesh("cpu", (1,))
        model = distribute_module(NETWORKS[network](), mesh)
        yield _program(model, lambda x: model(DTensor.from_local(x, mesh, [Replicate()])).full_tensor())


@contextlib.contextmanager
def _process_group() -> Iterator[None]:
    hook, store = sys.excepthook, torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        yield
    finally:
        torch.distributed.destroy_process_group()
        sys.excepthook = hook  # PyTorch sets one that prefixes the rank


REGIMES = {
    "eager": Regime(_in(lambda model: model)),
    "compiled": Regime(_in(_compiled)),
    'compiled, "graph"': Regime(_in(_compiled), {"compiled": "graph"}),
    'compiled, "opaque"': Regime(_in(_compiled), {"compiled": "opaque"}),
    "checkpoint": Regime(_in(_checkpointed)),
    "vmap": Regime(_in(_vmapped)),
    "jvp": Regime(_in(_forward_mode)),
    "sparse": Regime(_in(lambda model: model, Sparse)),
    "DTensor": Regime(_distributed),
}
