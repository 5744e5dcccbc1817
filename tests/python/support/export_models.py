"""Small models to export, with their inputs."""

from __future__ import annotations

import functools
import tempfile
import warnings
from pathlib import Path

import onnx
import torch
from onnx import TensorProto, helper
from torch import nn
from torch.nn import functional as F


class Perceptron(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.first, self.second = nn.LayerNorm(16), nn.Linear(16, 32), nn.Linear(32, 8)

    def forward(self, x):
        return torch.sigmoid(self.second(F.gelu(self.first(self.norm(x)))))


class ConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.conv1, self.norm1 = nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 8, 1)
        self.head = nn.Linear(8, 5)

    def forward(self, x):
        x = F.max_pool2d(torch.relu(self.norm(self.stem(x))), 2)
        x = torch.relu(x + self.norm1(self.conv1(torch.tanh(self.conv2(x)))))
        return self.head(x.mean((2, 3)) / 0.7)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x, mask):
        q, k, v = (each.view(*x.shape[:2], 2, 8).transpose(1, 2) for each in self.qkv(x).chunk(3, -1))
        scores = (q @ k.transpose(2, 3)) * 0.35
        scores = torch.where(mask, scores, torch.tensor(-1e4))
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(x.shape))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2, self.attention = nn.LayerNorm(16), nn.LayerNorm(16), Attention()
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x, mask):
        x = x + self.attention(self.norm1(x), mask)
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(32, 16), nn.Embedding(8, 16)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 32, bias=False)
        self.register_buffer("mask", torch.ones(8, 8).tril().bool())

    def forward(self, ids):
        n = ids.shape[1]
        x = self.tokens(ids) + self.places.weight[:n]
        for block in self.blocks:
            x = block(x, self.mask[:n, :n])
        return F.log_softmax(self.head(self.norm(x)), -1)


class Cached(nn.Module):
    """A step of a decoder: several results, and the state of the step before."""

    def __init__(self) -> None:
        super().__init__()
        self.key, self.query, self.out = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x, keys):
        keys = torch.cat([keys, self.key(x)], 1)
        weights = (self.query(x) @ keys.transpose(1, 2)).softmax(-1)
        best, where = weights.max(-1)
        return {"y": self.out(weights @ keys), "keys": keys, "best": best, "where": where}


def inputs_of(name: str) -> tuple[torch.Tensor, ...]:
    drawn = torch.Generator().manual_seed(1)

    def normal(*shape):
        return torch.randn(*shape, generator=drawn)

    return {
        "Perceptron": lambda: (normal(4, 16),),
        "ConvNet": lambda: (normal(2, 3, 8, 8),),
        "Decoder": lambda: (torch.randint(0, 32, (2, 6), generator=drawn),),
        "Cached": lambda: (normal(1, 1, 8), normal(1, 3, 8)),
    }[name]()


KINDS = {each.__name__: each for each in (Perceptron, ConvNet, Decoder, Cached)}


def model_of(name: str) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = KINDS[name]().eval().requires_grad_(False)
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean.normal_(0, 0.1)
                module.running_var.uniform_(0.5, 1.5)
            if isinstance(module, nn.LayerNorm):
                module.weight.uniform_(0.5, 1.5)
                module.bias.normal_(0, 0.1)
    return model


def exported(model: nn.Module, arguments: tuple[object, ...], path: Path, **options: object) -> Path:
    """Writes the file. The exporter's own warnings are not about the file."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            model, arguments, str(path), **{"dynamo": True, "verbose": False, "external_data": False, **options}
        )
    return path


def labelled_file(path: Path, name: str = "Net") -> Path:
    """A file of one node, which says that it was made of a model of this class."""
    node = helper.make_node("Relu", ["x"], ["relu"], name="relu")
    labels = {
        "class_hierarchy": f"['__main__.{name}', 'aten.relu.default']",
        "fx_node": "%relu : [num_users=1] = call_function[target=torch.ops.aten.relu.default](args = (%x,), kwargs = {})",
        "name_scopes": "['', 'relu']",
    }
    for key, value in labels.items():
        node.metadata_props.add(key=f"pkg.torch.onnx.{key}", value=value)
    values = [helper.make_tensor_value_info(each, TensorProto.FLOAT, [2]) for each in ("x", "relu")]
    onnx.save(helper.make_model(helper.make_graph([node], "graph", values[:1], values[1:])), path)
    return path


@functools.cache
def export_of(name: str) -> bytes:
    """The bytes of the file of a model: an export takes seconds."""
    with tempfile.TemporaryDirectory() as folder:
        dynamic = {"x": {0: "batch"}, "keys": {0: "batch", 1: "n"}} if name == "Cached" else None
        return exported(
            model_of(name), inputs_of(name), Path(folder) / "model.onnx", dynamic_shapes=dynamic
        ).read_bytes()
