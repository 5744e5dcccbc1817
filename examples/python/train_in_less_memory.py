"""Measures in how little memory a transformer can train, and the cost: DTR and checkpointing on the same model.

Each line is a training step of a BERT: as it is, with `torch.utils.checkpoint` around each layer, and under budgets of
a part of the memory that the step takes as it is. The gradients are compared bit for bit.
"""

import time

import amanda
import torch
from amanda.research.rematerialization import Rematerialization
from transformers import BertConfig, BertForSequenceClassification

torch.manual_seed(0)
torch.set_num_threads(1)  # so that results are the same on each machine
config = BertConfig(vocab_size=1000, hidden_size=128, num_hidden_layers=4, num_attention_heads=4, intermediate_size=512)
model = BertForSequenceClassification(config)
words, labels = torch.randint(1000, (16, 64)), torch.randint(2, (16,))


def step():
    model.zero_grad()
    torch.manual_seed(1)  # the same dropout
    model(input_ids=words, labels=labels).loss.backward()
    return [parameter.grad for parameter in model.parameters()]


def timed():
    """The shortest of three steps, and its gradients."""
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        gradients = step()
        seconds.append(time.perf_counter() - start)
    return min(seconds), gradients


def measure(budget):
    tool = Rematerialization(budget)
    with amanda.apply(tool):
        step()  # Amanda looks at each operator once
        return tool, *timed()


def measure_plain():
    """The time and gradients of the program itself; only its memory is measured in a scope."""
    step()
    return measure(1 << 60)[0], *timed()


def show(name, tool, seconds, gradients):
    same = all(torch.equal(a, b) for a, b in zip(gradients, expected, strict=True))
    recomputed = sum(row.recomputed for row in tool.rows()) // 4
    print(
        f"{name:26} {tool.peak / 1e6:6.1f} MB {tool.peak / peak:6.0%} of the peak   {seconds / usual:5.2f} times as long"
        f"   {recomputed:4} operators again   gradients {'equal' if same else 'DIFFERENT'}"
    )


unlimited, usual, expected = measure_plain()
peak = unlimited.peak
show("as it is", unlimited, usual, expected)
for percent in (75, 50, 40):
    try:
        show(f"budget of {percent}%", *measure(peak * percent // 100))
    except amanda.Error as error:
        print(f"budget of {percent}%: {error}")
model.activation_checkpointing_enable({"use_reentrant": False})
show("torch.utils.checkpoint", *measure_plain())
