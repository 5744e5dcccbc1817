"""Gradients of gradients, per sample, by jacobians: libraries that go deep into autograd."""

from __future__ import annotations

from typing import Any

import backpack
import backpack.extensions
import higher
import torch
import torchjd
import torchjd.aggregation
import torchopt
from library import left_of
from torch import nn
from torch.func import functional_call, grad, hessian, jacrev, jvp, stack_module_state, vmap
from torch.nn import functional as F


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 8), nn.Sigmoid(), nn.Linear(8, 2))


def higher_maml() -> dict[str, Any]:
    model = network()
    meta = torch.optim.Adam(model.parameters(), 0.01)
    inner = torch.optim.SGD(model.parameters(), 0.1)
    meta.zero_grad()
    for _ in range(2):
        x, y = torch.randn(6, 3), torch.randn(6, 2)
        with higher.innerloop_ctx(model, inner, copy_initial_weights=False) as (fast, steps):
            for _ in range(2):
                steps.step(F.mse_loss(fast(x), y))
            F.mse_loss(fast(x), y).backward()
    meta.step()
    return left_of(model, meta)


def torchopt_maml() -> dict[str, Any]:
    model = network()
    meta = torch.optim.Adam(model.parameters(), 0.01)
    inner = torchopt.MetaAdam(model, 0.1)
    start, start_inner = torchopt.extract_state_dict(model, by="reference"), torchopt.extract_state_dict(inner)
    meta.zero_grad()
    for _ in range(2):
        x, y = torch.randn(6, 3), torch.randn(6, 2)
        for _ in range(2):
            inner.step(F.mse_loss(model(x), y))
        F.mse_loss(model(x), y).backward()
        torchopt.recover_state_dict(model, start)
        torchopt.recover_state_dict(inner, start_inner)
    meta.step()
    return left_of(model, meta)


def backpack_curvature() -> dict[str, Any]:
    extensions = backpack.extensions
    model, criterion = backpack.extend(network()), backpack.extend(nn.MSELoss())
    wanted = [extensions.BatchGrad(), extensions.Variance(), extensions.DiagGGNExact(), extensions.KFAC()]
    with backpack.backpack(*wanted):
        criterion(model(torch.randn(6, 3)), torch.randn(6, 2)).backward()
    names = ["grad_batch", "variance", "diag_ggn_exact", "kfac"]
    return {**left_of(model), "curvature": [[getattr(p, name) for name in names] for p in model.parameters()]}


def torchjd_tasks() -> dict[str, Any]:
    model = network()
    output = model(torch.randn(6, 3))
    losses = [output[:, 0].square().mean(), (output[:, 1] - 1).abs().mean()]
    torchjd.autojac.backward(losses, jac_tensors=None)
    torchjd.autojac.jac_to_grad(model.parameters(), torchjd.aggregation.UPGrad())
    return left_of(model)


def torch_func() -> dict[str, Any]:
    models = [network() for _ in range(3)]
    parameters, buffers = stack_module_state(models)
    bare = network().to("meta")
    x, y = torch.randn(6, 3), torch.randn(6, 2)

    def loss(parameters: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.mse_loss(functional_call(models[0], parameters, (x,)), y)

    one = {name: value.detach() for name, value in models[0].named_parameters()}
    left = {
        "ensemble": vmap(lambda p, b, x: functional_call(bare, (p, b), (x,)), (0, 0, None))(parameters, buffers, x),
        "dropout": vmap(lambda x: F.dropout(x, 0.5), randomness="different")(x),
        "per sample": vmap(grad(loss), (None, 0, 0))(one, x, y),
        "jacobian": jacrev(models[0])(x),
        "hessian": hessian(lambda x: models[0](x).sum())(x[0]),
        "jvp": jvp(models[0], (x,), (torch.ones_like(x),)),
    }
    left["ensemble"].sum().backward()
    return left | {name: value.grad for name, value in parameters.items()}


PROGRAMS = [higher_maml, torchopt_maml, backpack_curvature, torchjd_tasks, torch_func]
