"""Prunes four of five weights of a small network, step by step, and takes the model out of Amanda.

A convolutional network learns to read handwritten digits. While it trains on, a cubic schedule raises the share of its
weights that are held at zero from 0 to 80%, and the network adapts between the changes. Pruned at once, without training,
it fails. At the end the zeros are written into the parameters, and the model computes the same outside of any scope.
"""

import amanda
import sklearn.datasets
import torch
import torch.nn.functional as F
from amanda.tools.pruning import MagnitudePruning, SparsitySchedule


class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = torch.nn.Conv2d(1, 8, 3, padding=1)
        self.conv2 = torch.nn.Conv2d(8, 16, 3, padding=1)
        self.hidden = torch.nn.Linear(64, 64)
        self.classes = torch.nn.Linear(64, 10)

    def forward(self, images):
        x = F.max_pool2d(F.relu(self.conv1(images)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.classes(F.relu(self.hidden(x.flatten(1))))


def train(model, images, labels, epochs, learning_rate, schedule=None):
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)
    for _ in range(epochs):
        for batch in torch.randperm(len(images)).split(64):
            optimizer.zero_grad()
            F.cross_entropy(model(images[batch]), labels[batch]).backward()
            optimizer.step()
            if schedule is not None:
                schedule.step()


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
print(f"dense            {accuracy(model, *test):6.1%}")

with amanda.apply(MagnitudePruning(sparsity=0.8)):
    print(f"pruned at once   {accuracy(model, *test):6.1%}")

steps = 12 * 19  # 12 epochs of 19 batches
schedule = SparsitySchedule(final=0.8, end=steps * 3 // 4, every=10)
pruning = MagnitudePruning(schedule)
with amanda.apply(pruning):
    train(model, *training, epochs=12, learning_rate=3e-3, schedule=schedule)
    print(f"pruned gradually {accuracy(model, *test):6.1%}")
    inside = model(test[0])

pruning.apply_to(model)
print(f"without Amanda   {accuracy(model, *test):6.1%}")
print(f"outputs are {'equal' if torch.equal(model(test[0]), inside) else 'different'}, bit for bit")
zeros = sum(int((parameter == 0).sum()) for parameter in model.parameters() if parameter.dim() > 1)
weights = sum(parameter.numel() for parameter in model.parameters() if parameter.dim() > 1)
print(f"{zeros} of {weights} weights are zero")
