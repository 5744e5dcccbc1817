"""Learns to read digits, with a bonus for answers that are not too sure, until the loss is NaN."""

import torch
from sklearn.datasets import load_digits
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
digits = load_digits()
images, labels = torch.tensor(digits.data, dtype=torch.float32), torch.tensor(digits.target)
model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)


def entropy(scores):
    probabilities = scores.softmax(1)
    surprise = -probabilities.log()
    return (probabilities * surprise).sum(1)


for _ in range(40):
    batch = torch.randint(0, len(images), (64,))
    scores = model(images[batch])
    loss = nn.functional.cross_entropy(scores, labels[batch]) - 0.01 * entropy(scores).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"loss: {loss.item():.3f}")
