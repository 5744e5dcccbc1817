"""The workloads: from one small operator to the train step of a model."""

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F


@dataclasses.dataclass
class Body:
    """A workload, made: `run(count)` does it so many times."""

    run: Callable[[int], None]
    model: torch.nn.Module | None = None
    inputs: dict[str, Any] | None = None  # with them the model's forward can be called; None for train steps


@dataclasses.dataclass(frozen=True)
class Workload:
    name: str
    group: str  # what --workloads calls it
    size: str  # for the reader
    make: Callable[[bool], Body]  # make(full)
    own_op: str = "linear"  # an operator that occurs
    other_op: str = "conv2d"  # one that does not
    full_size: str = ""  # of --full, where it differs
    unit: str = "step"


def repeat(once):
    def run(count):
        for _ in range(count):
            once()

    return run


def add(full):
    a, b, function = torch.ones(4), torch.ones(4), torch.add

    def run(count):  # no call between: it is the operator that is measured
        for _ in range(count):
            function(a, b)

    return Body(run)


def linear(full, requires_grad=False):
    x, weight, function = torch.randn(2, 8), torch.randn(8, 8, requires_grad=requires_grad), F.linear

    def run(count):
        for _ in range(count):
            function(x, weight)

    return Body(run)


def linear_with_grad(full):
    return linear(full, requires_grad=True)


def train_step(model, loss_of, inputs=None):
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step():
        optimizer.zero_grad()
        loss_of().backward()
        optimizer.step()

    return Body(repeat(step), model)


def transformer_layer(full):
    layer, x = torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True), torch.randn(4, 8, 64)
    return train_step(layer, lambda: layer(x).sum())


def forward(model, inputs):
    model.eval()

    @torch.no_grad()
    def step():
        model(**inputs)

    return Body(repeat(step), model, inputs)


def bert_inputs(full):
    import models

    batch, length = (8, 128) if full else (1, 32)
    return {"input_ids": models.token_batch(batch, length, 30000)}, torch.zeros(batch, dtype=torch.long)


def bert_forward(full):
    import models

    return forward(models.bert_base(), bert_inputs(full)[0])


def bert_train(full):
    import models

    model, (inputs, labels) = models.bert_base(), bert_inputs(full)
    return train_step(model, lambda: model(**inputs, labels=labels).loss)


def resnet_inputs(full):
    batch, side = (8, 224) if full else (2, 64)
    return {"pixel_values": torch.randn(batch, 3, side, side)}, torch.zeros(batch, dtype=torch.long)


def resnet_forward(full):
    import models

    return forward(models.resnet50(), resnet_inputs(full)[0])


def resnet_train(full):
    import models

    model, (inputs, labels) = models.resnet50(), resnet_inputs(full)
    return train_step(model, lambda: model(**inputs, labels=labels).loss)


def decode(full):
    """Greedy decoding with a key-value cache, a token at a time."""
    import models

    model, prompt = models.small_llama().eval(), models.token_batch(1, 8)

    @torch.no_grad()
    def generate():
        tokens, cache = prompt, None
        for _ in range(16):
            output = model(input_ids=tokens, past_key_values=cache, use_cache=True)
            cache, tokens = output.past_key_values, output.logits[:, -1:].argmax(-1)

    return Body(repeat(generate), model)


WORKLOADS = [
    Workload("torch.add", "add", "4 elements", add, own_op="add", unit="call"),
    Workload("F.linear", "linear", "2x8 by 8x8", linear, unit="call"),
    Workload("F.linear, grad", "linear", "2x8 by 8x8, records", linear_with_grad, unit="call"),
    Workload("transformer layer, train", "transformer", "width 64, 4x8 tokens, SGD", transformer_layer),
    Workload("BERT-base, forward", "bert", "1x32 tokens", bert_forward, full_size="8x128 tokens"),
    Workload("BERT-base, train", "bert", "1x32 tokens, SGD", bert_train, full_size="8x128 tokens, SGD"),
    Workload(
        "ResNet-50, forward",
        "resnet",
        "2 images of 64x64",
        resnet_forward,
        "conv2d",
        "embedding",
        "8 images of 224x224",
    ),
    Workload(
        "ResNet-50, train",
        "resnet",
        "2 images of 64x64, SGD",
        resnet_train,
        "conv2d",
        "embedding",
        "8 images of 224x224, SGD",
    ),
    Workload("decode", "decode", "LLaMA-style, width 64, 16 tokens", decode),
]
GROUPS = list(dict.fromkeys(workload.group for workload in WORKLOADS))
