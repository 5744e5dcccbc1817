"""Programs that use a device in many ways. Each is given it, and returns what it computed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint


def network(device: torch.device, width: int = 64) -> tuple[torch.nn.Module, torch.Tensor]:
    """A small network with its input, the same each time."""
    with torch.random.fork_rng():
        torch.manual_seed(5)
        layers = [layer for _ in range(3) for layer in (torch.nn.Linear(width, width), torch.nn.GELU())]
        return torch.nn.Sequential(*layers).to(device), torch.randn(32, width).to(device)


def gradients(model: torch.nn.Module) -> list[Any]:
    return [parameter.grad for parameter in model.parameters()]


def scaled(device: torch.device) -> Any:
    model, x = network(device)
    optimizer = torch.optim.AdamW(model.parameters(), fused=device.type == "cuda")
    scaler = torch.amp.GradScaler(device.type)
    for _ in range(3):
        optimizer.zero_grad()
        with torch.autocast(device.type, torch.float16 if device.type == "cuda" else torch.bfloat16):
            loss = model(x).float().square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    return [loss, list(model.parameters()), scaler.get_scale()]


def checkpointed(reentrant: bool) -> Callable[[torch.device], Any]:
    def program(device: torch.device) -> Any:
        model, x = network(device)
        dropout = torch.nn.Dropout(0.3)
        out = checkpoint(lambda y: dropout(model(y)), x.requires_grad_(), use_reentrant=reentrant)
        out.sum().backward()
        return [out, x.grad, gradients(model)]

    return program


def copies(device: torch.device) -> Any:
    host = torch.arange(1 << 16, dtype=torch.float32)
    host = host.pin_memory() if device.type == "cuda" else host
    there = host.to(device, non_blocking=True)
    back = torch.empty_like(host)
    back.copy_(there * 2, non_blocking=True)
    torch.accelerator.synchronize() if device.type == "cuda" else None
    return [there, back, there.to("cpu", torch.float16), torch.stack([there[:4], there[4:8]]).tolist()]


def channels_last(device: torch.device) -> Any:
    layers = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU())
    model = layers.to(device, memory_format=torch.channels_last)
    x = torch.randn(2, 3, 32, 32, device=device).to(memory_format=torch.channels_last).requires_grad_()
    out = model(x)
    out.square().sum().backward()
    return [out, x.grad, gradients(model)]


def lstm(device: torch.device) -> Any:
    model = torch.nn.LSTM(8, 16, 2, batch_first=True, dropout=0.2).to(device)
    x = torch.randn(2, 9, 8, device=device, requires_grad=True)
    out, state = model(x)
    out.square().sum().backward()
    return [out, state, x.grad, gradients(model)]


def vmap_of_grad(device: torch.device) -> Any:
    model, x = network(device)

    def loss(parameters: dict[str, torch.Tensor], row: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(model, parameters, (row[None],)).square().mean()

    return torch.vmap(torch.func.grad(loss), (None, 0))(dict(model.named_parameters()), x[:4])


def double_backward(device: torch.device) -> Any:
    model, x = network(device)
    (gradient,) = torch.autograd.grad(model(x.requires_grad_()).square().sum(), x, create_graph=True)
    gradient.square().sum().backward()
    return [gradient, x.grad, gradients(model)]


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return 2 * x * gradient


def autograd_function(device: torch.device) -> Any:
    x = torch.randn(64, device=device, requires_grad=True)
    Square.apply(x).sum().backward()
    return x.grad


def sparse(device: torch.device) -> Any:
    x = torch.randn(8, 4, device=device, requires_grad=True)
    out = torch.eye(8, device=device).to_sparse() @ x
    out.sum().backward()
    return [out, x.grad]


def foreach(device: torch.device) -> Any:
    many = [torch.randn(i + 1, device=device) for i in range(16)]
    torch._foreach_add_(many, 1.0)
    torch._foreach_mul_(many, many)
    return [*many, torch.nn.utils.get_total_norm(many)]


def indices(device: torch.device) -> Any:
    x = torch.randn(64, 32, device=device)
    rows = torch.randint(0, 64, (100,), device=device)
    x.index_add_(0, rows, torch.ones(100, 32, device=device))
    chosen = torch.multinomial(x.softmax(1), 2)
    return [x, x.sort().values, x.topk(3).indices, x.cumsum(0), chosen, x[x > 0], x.nonzero()]


def attention(backend: SDPBackend) -> Callable[[torch.device], Any]:
    def program(device: torch.device) -> Any:
        is_exact = backend in (SDPBackend.MATH, SDPBackend.EFFICIENT_ATTENTION)
        dtype = torch.float32 if is_exact else torch.bfloat16
        q, k, v = (torch.randn(2, 4, 64, 32, device=device, dtype=dtype, requires_grad=True) for _ in range(3))
        with sdpa_kernel(backend):
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            out.square().sum().backward()
        return [out, q.grad, k.grad, v.grad]

    return program


PROGRAMS: dict[str, Callable[[torch.device], Any]] = {
    "GradScaler": scaled,
    "checkpoint": checkpointed(False),
    "reentrant checkpoint": checkpointed(True),
    "copies": copies,
    "channels_last": channels_last,
    "LSTM": lstm,
    "vmap of grad": vmap_of_grad,
    "double backward": double_backward,
    "autograd.Function": autograd_function,
    "sparse": sparse,
    "foreach": foreach,
    "indices": indices,
    "attention, math": attention(SDPBackend.MATH),
    "attention, flash": attention(SDPBackend.FLASH_ATTENTION),
}

OF_CUDA: dict[str, Callable[[torch.device], Any]] = {
    "attention, efficient": attention(SDPBackend.EFFICIENT_ATTENTION),
    "attention, cuDNN": attention(SDPBackend.CUDNN_ATTENTION),
}
