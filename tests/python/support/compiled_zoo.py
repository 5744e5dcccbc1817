"""Compiled models of many kinds, and what a tool that looks at every operator changes in them.

`make compiled-zoo` writes a row for each model to the terminal: ARGS="--backend aot_eager llama t5" and others.
"""

# ruff: noqa: C408 -- configurations read better so
from __future__ import annotations

import argparse
import time
import warnings

import amanda
import torch
import transformers
import zoo
from amanda.reports.progress import Progress
from compiling import Looks, apply, differentiate
from torch.utils._pytree import tree_leaves
from unharmed import bits

nn = torch.nn


def mlp():
    layers = [nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(inplace=True), nn.Dropout(0.5), nn.Linear(8, 2)]
    return nn.Sequential(*layers), dict(input=torch.randn(3, 4))


def attention():
    model = nn.TransformerDecoderLayer(8, 2, 16, batch_first=True)
    return model, dict(tgt=torch.randn(2, 3, 8), memory=torch.randn(2, 4, 8))


def convnet():
    layers = [
        nn.Conv2d(3, 4, 3),
        nn.GroupNorm(2, 4),
        nn.SiLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Upsample(scale_factor=2),
    ]
    return nn.Sequential(*layers), dict(input=zoo.pixels())


def resnet50():
    import transformers

    config = transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16, 32, 64])  # as deep, and not as wide
    return transformers.ResNetModel(config), dict(pixel_values=zoo.pixels())


MODELS = [
    mlp, attention, convnet, resnet50,
    zoo.bert, zoo.distilbert, zoo.deberta, zoo.gpt2, zoo.llama, zoo.opt, zoo.gemma, zoo.t5, zoo.bart, zoo.mixtral,
    zoo.mamba, zoo.vit, zoo.swin, zoo.resnet, zoo.convnext, zoo.whisper, zoo.wav2vec2, zoo.clip,
]  # fmt: skip


class Trained:
    """A model, what it starts from, and its training step."""

    def __init__(self, make):
        torch.manual_seed(0)
        self.model, self.inputs = make()
        self.state = {name: value.clone() for name, value in self.model.state_dict().items()}

    def left(self, run):
        """All that one step leaves behind."""
        with amanda.disabled():
            torch.manual_seed(1)
            self.model.train().zero_grad()
            self.model.load_state_dict(self.state)
            optimizer = torch.optim.SGD(self.model.parameters(), 0.1)
        results = run(**self.inputs)
        differentiate(results)
        with amanda.disabled():
            gradients = [parameter.grad for parameter in self.model.parameters() if parameter.grad is not None]
            optimizer.step()
            state = [value.clone() for value in self.model.state_dict().values()]
        return [*tensors(results), *gradients, *state, torch.get_rng_state()]

    def step(self, run):
        """The same, to compare bit for bit."""
        left = self.left(run)
        with amanda.disabled():
            return bits(left)


def tensors(results):
    results = results.to_tuple() if hasattr(results, "to_tuple") else results
    return [leaf for leaf in tree_leaves(results) if isinstance(leaf, torch.Tensor)]


# ---- the table -------------------------------------------------------------------------------------------------------


def difference(left, right):
    """The largest, as a part of the largest value of its tensor; "none": all bits are equal."""
    if bits(left) == bits(right):
        return "none"
    return f"{max(map(apart, left, right)):.1e}"


def apart(one, other):
    one, other = one.detach().double(), other.detach().double()
    scale = max(float(one.abs().max()), float(other.abs().max()), 1e-30) if one.numel() else 1
    # Gradients that are zero but for rounding, such as a bias's before a normalization, have no scale of their own.
    return float((one - other).abs().max()) / max(scale, 1e-3) if one.numel() else 0.0


def row(make, backend):
    torch._dynamo.reset()
    trained, looks = Trained(make), Looks()
    compiled = torch.compile(trained.model, backend=backend)
    eager, start = trained.left(trained.model), time.perf_counter()
    plain, again = trained.left(compiled), trained.left(compiled)
    compile_time, start = time.perf_counter() - start, time.perf_counter()
    with apply(looks):
        watched = trained.left(compiled)
    watched_time = time.perf_counter() - start
    after = trained.left(compiled)
    if not bits(plain) == bits(again) == bits(after):
        return [make.__name__, "differs from run to run without a tool", "", "", ""]
    counts = f"{sum(looks.forward.values())} + {sum(looks.backward.values())}"
    seconds = f"{compile_time:.0f} s, {watched_time:.0f} s"
    return [make.__name__, counts, difference(watched, plain), difference(plain, eager), seconds]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", help="names; all if there are none")
    parser.add_argument("--backend", default="inductor")
    options = parser.parse_args()
    torch._inductor.config.fallback_random = True  # the random numbers of eager mode
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    print("| model | operators, forward + backward | tool and none | none and eager | compiled in, with the tool |")
    print("| --- | ---: | ---: | ---: | ---: |", flush=True)
    chosen = [make for make in MODELS if not options.models or make.__name__ in options.models]
    with Progress("training compiled models", len(chosen), ticks=True) as progress:
        for make in chosen:
            progress.now(make.__name__)
            cells = row(make, options.backend)
            with progress.away():
                print("|", " | ".join(cells), "|", flush=True)
            progress.advance()


if __name__ == "__main__":
    main()
