"""What PyTorch has on board beside plain modules."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from library import left_of
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional as F
from torch.nn.utils import parametrizations, prune
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map
from torch.utils.flop_counter import FlopCounterMode


def compiled() -> dict[str, Any]:
    """Through TorchDynamo, which writes new bytecode; the graphs run as they are."""
    layer = nn.Linear(4, 4)

    @torch.compile(backend="eager")
    def function(x: torch.Tensor) -> torch.Tensor:
        y = F.dropout(layer(x).relu(), 0.5)
        if y.sum() > 0:  # breaks the graph
            y = y * 2
        return y.softmax(-1)

    x = torch.randn(3, 4, requires_grad=True)
    left = []
    for _ in range(2):
        left.append(function(x))
        left[-1].square().sum().backward()
    return {"outputs": left, "x": x.grad, **left_of(layer)}


def parametrized() -> dict[str, Any]:
    model = nn.Sequential(
        parametrizations.weight_norm(nn.Linear(4, 6)),
        parametrizations.spectral_norm(nn.Linear(6, 6)),
        parametrizations.orthogonal(nn.Linear(6, 6)),
        prune.l1_unstructured(nn.Linear(6, 2), "weight", 0.5),
    )
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(2):
        optimizer.zero_grad()
        with nn.utils.parametrize.cached():
            model(torch.randn(5, 4)).square().sum().backward()
        optimizer.step()
    return left_of(model, optimizer)


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, scale: torch.Tensor, power: int) -> torch.Tensor:
        ctx.save_for_backward(x, scale)
        ctx.power = power
        return x.pow(power) * scale

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        x, scale = ctx.saved_tensors
        return gradient * ctx.power * x.pow(ctx.power - 1) * scale, (gradient * x.pow(ctx.power)).sum(), None


def custom_functions() -> dict[str, Any]:
    """Hooks and functions of all kinds that autograd offers."""
    x, scale = torch.randn(4, 4, requires_grad=True), torch.tensor(2.0, requires_grad=True)
    seen: list[Any] = []
    x.register_hook(lambda gradient: gradient * 0.5)
    x.register_post_accumulate_grad_hook(lambda leaf: seen.append(leaf.grad.clone()))
    layer = nn.Linear(4, 4)
    layer.register_forward_hook(lambda module, inputs, output: output + 1)
    layer.register_full_backward_hook(lambda module, inputs, outputs: (inputs[0] * 2,))
    with torch.autograd.graph.saved_tensors_hooks(lambda saved: saved.double(), lambda saved: saved.float()):
        y = Scaled.apply(layer(x), scale, 3)
    with torch.autograd.graph.save_on_cpu():
        z = Scaled.apply(y.tanh(), scale, 2).logsumexp(-1)
    z.grad_fn.register_prehook(lambda gradients: (gradients[0].clamp(max=1.0),))
    z.sum().backward()
    return {"seen": seen, "x": x.grad, "scale": scale.grad, **left_of(layer)}


def checkpoints() -> dict[str, Any]:
    block = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.3), nn.GELU())
    left: dict[str, Any] = {}
    for reentrant in (False, True):
        block.zero_grad()
        x = torch.randn(5, 4, requires_grad=True)
        y = x
        for _ in range(2):
            y = torch.utils.checkpoint.checkpoint(block, y, use_reentrant=reentrant)
        y.square().sum().backward()
        left[str(reentrant)] = [x.grad, {name: p.grad.clone() for name, p in block.named_parameters()}]
    return {**left, **left_of(block)}


def transformer() -> dict[str, Any]:
    model = nn.Transformer(8, 2, 1, 1, 16, batch_first=True)
    source, target = torch.randn(2, 3, 8), torch.randn(2, 4, 8)
    mask = nn.Transformer.generate_square_subsequent_mask(4)
    model(source, target, tgt_mask=mask, tgt_is_causal=True).square().sum().backward()
    left = left_of(model)
    model.eval()
    # The fast path: one fused operator per layer, on nested tensors where there is padding.
    with torch.inference_mode():
        padding = torch.tensor([[False, False, True], [False, False, False]])
        left["eval"] = model.encoder(source, src_key_padding_mask=padding)
    return left


def traced_and_exported() -> dict[str, Any]:
    model, x = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)), torch.randn(3, 4)
    symbolic = torch.fx.symbolic_trace(model)
    size = torch.export.Dim("size", min=2, max=8)
    exported = torch.export.export(model, (x,), dynamic_shapes=({0: size},)).module()
    scripted = torch.jit.script(model)
    left = {"fx": symbolic(x), "export": exported(x), "script": scripted(x)}
    for output in left.values():
        output.sum().backward()
    return {**left, **left_of(model)}


class Doubled(TorchDispatchMode):
    """A mode of the program that changes what an operator gives."""

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), keywords: Any = None) -> Any:
        result = function(*arguments, **(keywords or {}))
        return result * 2 if function is torch.ops.aten.sin.default else result


def dispatch_modes() -> dict[str, Any]:
    layer, x = nn.Linear(4, 4), torch.randn(3, 4, requires_grad=True)
    with FlopCounterMode(display=False) as counter:
        layer(x).square().sum().backward()
    with Doubled():
        doubled = (torch.sin(x), torch.cos(x))
        (doubled[0].sum() + doubled[1].sum()).backward()
    return {"flops": counter.get_total_flops(), "doubled": doubled, "x": x.grad, **left_of(layer)}


def sparse_gradients() -> dict[str, Any]:
    bag, table = nn.EmbeddingBag(20, 8, sparse=True), nn.Embedding(20, 8, sparse=True, max_norm=1.0)
    optimizer = torch.optim.SparseAdam([*bag.parameters(), *table.parameters()])
    for _ in range(2):
        optimizer.zero_grad()
        (bag(torch.randint(0, 20, (3, 4))).square().sum() + table(torch.tensor([1, 2, 2])).sum()).backward()
        optimizer.step()
    dense = torch.randn(4, 4, requires_grad=True)
    coordinates = torch.randn(4, 4).relu().to_sparse().requires_grad_()
    rows = torch.randn(4, 4).relu().to_sparse_csr().requires_grad_()
    (torch.sparse.mm(coordinates, dense) + rows @ dense).sum().backward()
    return {"gradients": [dense.grad, coordinates.grad, rows.grad], **left_of(bag, optimizer), "table": left_of(table)}


def written_parts() -> dict[str, Any]:
    """A layer that writes what it computes to a part of another tensor, as Fourier neural operators do."""
    table = nn.Embedding(9, 4, padding_idx=0)
    weight = nn.Parameter(torch.randn(4, 4, 2, dtype=torch.cfloat))
    optimizer = torch.optim.Adam([weight, *table.parameters()], 0.01)
    for _ in range(2):
        optimizer.zero_grad()
        spectrum = torch.fft.rfft(table(torch.randint(0, 9, (2, 8))).transpose(1, 2))
        written = torch.zeros_like(spectrum)
        written[:1, :, :2] = torch.einsum("bim,iom->bom", spectrum[:1, :, :2], weight)
        written[1:, 0] = spectrum[0, 1]
        written.real[:, :2, 3:].mul_(0.5).add_(spectrum.imag[:, 2:, :2])
        torch.fft.irfft(written, n=8).square().sum().backward()
        optimizer.step()
    return {"written": written, "weight": [weight, weight.grad], **left_of(table, optimizer)}


def ragged() -> dict[str, Any]:
    """Sequences of different lengths: packed, and in a jagged tensor."""
    recurrent = nn.LSTM(4, 8, 2, batch_first=True, dropout=0.3, bidirectional=True, proj_size=3)
    x = torch.randn(3, 5, 4, requires_grad=True)
    packed = nn.utils.rnn.pack_padded_sequence(x, [5, 3, 2], batch_first=True)
    output, _ = nn.utils.rnn.pad_packed_sequence(recurrent(packed)[0], batch_first=True)
    output.square().sum().backward()
    parts = [torch.randn(2, 4), torch.randn(3, 4)]
    jagged = torch.nested.nested_tensor(parts, layout=torch.jagged, requires_grad=True)
    layer, norm = nn.Linear(4, 4), nn.LayerNorm(4)
    heads = layer(norm(jagged)).unflatten(-1, (2, 2)).transpose(1, 2)
    attended = F.scaled_dot_product_attention(heads, heads, heads).transpose(1, 2).flatten(-2)
    (attended * 2 + jagged).values().square().sum().backward()
    return {"packed": [output, x.grad, left_of(recurrent)], "jagged": jagged.grad.values(), **left_of(layer)}


def distributions() -> dict[str, Any]:
    layer, x = nn.Linear(4, 4), torch.randn(5, 4)
    mean, scale = layer(x)[:, :2], layer(x)[:, 2:].exp()
    d = torch.distributions
    normal = d.Normal(mean, scale)
    mixture = d.MixtureSameFamily(d.Categorical(logits=mean), normal)
    squashed = d.TransformedDistribution(normal, [d.TanhTransform(), d.AffineTransform(0, 2)])
    samples = [
        each.rsample() for each in (normal, squashed, d.Beta(scale, 1.0), d.Gamma(scale, 1.0), d.Dirichlet(scale))
    ]
    loss = d.kl_divergence(normal, d.Normal(0.0, 1.0)).sum() + mixture.log_prob(x[:, 0]).sum()
    (loss + sum(sample.sum() for sample in samples)).backward()
    return {"samples": samples, **left_of(layer)}


def alone_in_a_group(program: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        where = f"file://{os.path.join(folder, 'store')}"
        dist.init_process_group("gloo", init_method=where, rank=0, world_size=1)
        try:
            return program()
        finally:
            dist.destroy_process_group()


def train(model: nn.Module) -> dict[str, Any]:
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(5, 4)).square().mean().backward()
        optimizer.step()
    return left_of(model, optimizer)


def local(left: dict[str, Any]) -> dict[str, Any]:
    """The parts of distributed tensors that are here."""
    return tree_map(lambda value: value.to_local() if isinstance(value, DTensor) else value, left)


def ddp() -> dict[str, Any]:
    def program() -> dict[str, Any]:
        return train(nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))))

    return alone_in_a_group(program)


def tensor_parallel() -> dict[str, Any]:
    """Distributed tensors, which are subclasses."""

    def program() -> dict[str, Any]:
        mesh = init_device_mesh("cpu", (1,))
        model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
        parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
        return local(train(model))

    return alone_in_a_group(program)


def fsdp2() -> dict[str, Any]:
    def program() -> dict[str, Any]:
        model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
        for layer in (model[0], model[2], model):
            fully_shard(layer)
        return local(train(model))

    return alone_in_a_group(program)


PROGRAMS = [
    compiled,
    parametrized,
    custom_functions,
    checkpoints,
    transformer,
    traced_and_exported,
    dispatch_modes,
    sparse_gradients,
    written_parts,
    ragged,
    distributions,
    ddp,
    fsdp2,
    tensor_parallel,
]
