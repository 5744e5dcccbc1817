"""Attention on 3 bits: the cost of rounding for a trained network, and the gain of training with the rounding in place.

A small transformer learns to read handwritten digits, each row of pixels a token. Then every product in it computes
with 8 levels, the products of activations inside attention included, which are no modules that could be replaced.
"""

import amanda
import sklearn.datasets
import torch
import torch.nn.functional as F
from amanda.tools.quantization import FakeQuantization
from torch.ao.quantization.observer import MovingAverageMinMaxObserver, PerChannelMinMaxObserver

activation = MovingAverageMinMaxObserver.with_args(dtype=torch.quint8, quant_min=0, quant_max=7)
weight = PerChannelMinMaxObserver.with_args(
    dtype=torch.qint8, qscheme=torch.per_channel_symmetric, quant_min=-4, quant_max=3
)


class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.rows = torch.nn.Linear(8, 32)
        self.places = torch.nn.Parameter(torch.randn(8, 32) / 4)
        self.queries_keys_values = torch.nn.Linear(32, 96)
        self.classes = torch.nn.Linear(8 * 32, 10)

    def forward(self, images):
        x = self.rows(images) + self.places
        heads = self.queries_keys_values(x).unflatten(-1, (3, 4, 8)).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(*heads.unbind())
        return self.classes(F.gelu(x + attended.transpose(1, 2).flatten(2)).flatten(1))


def train(model, images, labels, epochs):
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(epochs):
        for batch in torch.randperm(len(images)).split(64):
            optimizer.zero_grad()
            F.cross_entropy(model(images[batch]), labels[batch]).backward()
            optimizer.step()


@torch.no_grad()
def accuracy(model, images, labels):
    return (model(images).argmax(1) == labels).float().mean().item()


torch.manual_seed(0)
torch.set_num_threads(1)  # the tensors are small
digits = sklearn.datasets.load_digits()  # 1797 images of 8 x 8 pixels, a part of scikit-learn
images, labels = torch.tensor(digits.images, dtype=torch.float32) / 16, torch.tensor(digits.target)
order = torch.randperm(len(images))
training, test = ((images[part], labels[part]) for part in (order[:1200], order[1200:]))

model = Network()
train(model, *training, epochs=10)
print(f"float32           {accuracy(model, *test):6.1%}")

tool = FakeQuantization(
    {
        "linear": {"input": activation, "weight": weight},
        "scaled_dot_product_attention": {"query": activation, "key": activation, "value": activation},
        "add": {"self": activation, "other": activation},
    }
)
with amanda.apply(tool):
    for batch in training[0].split(64):
        model(batch)  # finds the ranges of the values
    tool.observe = False
    print(f"3 bits            {accuracy(model, *test):6.1%}")
    tool.observe = True
    train(model, *training, epochs=5)
    tool.observe = False
    print(f"3 bits, fine-tuned{accuracy(model, *test):6.1%}")
for row in tool.rows():
    scale = row.scale.flatten()
    print(f"{row.name.removeprefix('aten::'):28} {row.position:6} {len(scale):2} scales, from {scale.min():.4f}")
