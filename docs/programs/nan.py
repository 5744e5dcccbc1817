"""Learns to place equal digits close to each other, until the loss is NaN."""

import torch
from sklearn.datasets import load_digits
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
digits = load_digits()
images, labels = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
left, right = torch.randint(0, len(images), (2, 20, 64))  # 20 batches of 64 pairs
right[7, 5] = left[7, 5]
model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def distance(a, b):
    return (a - b).square().sum(1).sqrt()


for step in range(20):
    optimizer.zero_grad()
    apart = distance(model(images[left[step]]), model(images[right[step]]))
    same = labels[left[step]] == labels[right[step]]
    loss = torch.where(same, apart.square(), (1 - apart).clamp(min=0).square()).mean()
    loss.backward()
    optimizer.step()
print(f"loss: {loss.item():.3f}")
