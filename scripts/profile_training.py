"""The program that records the profile of a release build: `python scripts/profile_training.py`, in seconds.

It runs small workloads under the rows of tests/bench, with the amanda that this Python imports. That is a build with
AMANDA_PROFILE=generate: see scripts/wheel.sh. The decoder is a program of this file, because a build has torch and no
other package.
"""

import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "bench"))
import configurations
import process
from workloads import Body, Workload, add, linear, linear_with_grad, repeat, transformer_layer

WIDTH, HEADS, TOKENS = 64, 4, 16


class Norm(nn.Module):
    """The root mean square becomes 1; in single operators, as models of transformers have it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


class Layer(nn.Module):
    """A layer of a decoder, with a cache of keys and values."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Norm(), Norm()
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.gate, self.up = nn.Linear(WIDTH, 2 * WIDTH, bias=False), nn.Linear(WIDTH, 2 * WIDTH, bias=False)
        self.down = nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, cache: list) -> torch.Tensor:
        normed = self.first(x)
        query, key, value = (
            part(normed).view(1, -1, HEADS, WIDTH // HEADS).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        query, key = (part * cos + rotated(part) * sin for part in (query, key))
        if cache:
            key, value = torch.cat([cache[0], key], 2), torch.cat([cache[1], value], 2)
        cache[:] = key, value
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=query.shape[2] > 1)
        x = x + self.out(attended.transpose(1, 2).reshape(1, -1, WIDTH))
        normed = self.second(x)
        return x + self.down(F.silu(self.gate(normed)) * self.up(normed))


def rotated(x: torch.Tensor) -> torch.Tensor:
    half = x.shape[-1] // 2
    return torch.cat([-x[..., half:], x[..., :half]], -1)


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.layers = nn.Embedding(256, WIDTH), nn.ModuleList(Layer() for _ in range(2))
        self.norm, self.head = Norm(), nn.Linear(WIDTH, 256, bias=False)

    def forward(self, tokens: torch.Tensor, past: int, caches: list[list]) -> torch.Tensor:
        positions = torch.arange(past, past + tokens.shape[1])
        frequencies = 1e4 ** (-torch.arange(0, WIDTH // HEADS, 2) / (WIDTH // HEADS))
        angles = torch.outer(positions.float(), frequencies).repeat(1, 2)
        x, cos, sin = self.embedding(tokens), angles.cos(), angles.sin()
        for layer, cache in zip(self.layers, caches, strict=True):
            x = layer(x, cos, sin, cache)
        return self.head(self.norm(x))


def decode(full: bool) -> Body:
    """Greedy decoding, a token at a time."""
    model, prompt = Decoder().eval(), torch.randint(3, 250, (1, 8))

    @torch.no_grad()
    def generate() -> None:
        tokens, past, caches = prompt, 0, [[] for _ in model.layers]
        for _ in range(TOKENS):
            logits = model(tokens, past, caches)
            past, tokens = past + tokens.shape[1], logits[:, -1:].argmax(-1)

    return Body(repeat(generate), model)


# With how often each runs in a scope. Decoding is what programs are like: most of the counts are its.
RUNS = {
    Workload("torch.add", "add", "", add, own_op="add"): 2000,
    Workload("F.linear", "linear", "", linear): 1000,
    Workload("F.linear, grad", "linear", "", linear_with_grad): 1000,
    Workload("transformer layer, train", "transformer", "", transformer_layer): 30,
    Workload("decode", "decode", "", decode): 10,
}


def main() -> None:
    process.prepare()
    bodies = {workload: workload.make(False) for workload in RUNS}
    for rows in configurations.phases(configurations.CONFIGURATIONS):
        for row in rows:
            for workload, body in bodies.items():
                try:
                    with row.open(workload, body) as session:
                        session.run(RUNS[workload])
                        if session.seen is not None and not session.seen():
                            sys.exit(f"[profile] {row.name} has seen nothing of {workload.name}")
                except configurations.Missing:
                    pass


if __name__ == "__main__":
    main()
