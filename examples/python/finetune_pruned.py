"""Prunes half of the weights of a small network (2:4), and recovers the accuracy by fine-tuning the others.

A convolutional network learns to read handwritten digits. Then two of every four weights, the smallest, are held at
zero: the pattern that sparse tensor cores compute with. After more training with the zeros in place, it recovers. The
last layer is a plain `torch.nn.functional.linear`, where `torch.nn.utils.prune` has no module to prune.
"""

import amanda
import sklearn.datasets
import torch
import torch.nn.functional as F
from amanda.tools.pruning import VectorwisePruning


class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = torch.nn.Conv2d(1, 8, 3, padding=1)
        self.conv2 = torch.nn.Conv2d(8, 16, 3, padding=1)
        self.conv3 = torch.nn.Conv2d(16, 16, 3, padding=1)
        self.classes = torch.nn.Parameter(torch.randn(10, 64) / 8)

    def forward(self, images):
        x = F.max_pool2d(F.relu(self.conv1(images)), 2)
        x = F.max_pool2d(F.relu(self.conv3(F.relu(self.conv2(x)))), 2)
        return F.linear(x.flatten(1), self.classes)


class Zeros(amanda.Tool):
    """Counts the zeros of the masks that a pruning tool made."""

    def __init__(self, pruning):
        super().__init__()
        self.zeros = self.weights = 0
        self.depends_on(pruning)
        self.add_inst_for_op(self.analyze, ops=["conv2d", "linear"])

    def analyze(self, context):
        self.zeros += int((context["mask"] == 0).sum())
        self.weights += context["mask"].numel()


def train(model, images, labels, epochs, learning_rate):
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)
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
images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
labels = torch.tensor(digits.target)
order = torch.randperm(len(images))
training, test = ((images[part], labels[part]) for part in (order[:1200], order[1200:]))

model = Network()
train(model, *training, epochs=12, learning_rate=3e-3)
print(f"dense      {accuracy(model, *test):6.1%}")

pruning = VectorwisePruning()
zeros = Zeros(pruning)
with amanda.apply(pruning, zeros):  # one scope: the masks are made at the first step and stay
    print(f"2:4 pruned {accuracy(model, *test):6.1%}")
    train(model, *training, epochs=6, learning_rate=1e-3)
    print(f"fine-tuned {accuracy(model, *test):6.1%}")
print(f"{zeros.zeros} of {zeros.weights} weights are zero; conv1, with one input channel, has no four to prune")
