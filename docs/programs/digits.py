"""Trains a small network on handwritten digits, and prints how many of the rest it reads right."""

import torch
from sklearn.datasets import load_digits
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
digits = load_digits()
images, labels = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16, torch.tensor(digits.target)
model = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Flatten(),
    nn.Linear(256, 64),
    nn.ReLU(),
    nn.Linear(64, 10),
)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for step in range(180):
    batch = slice(step % 12 * 128, step % 12 * 128 + 128)
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])
    loss.backward()
    optimizer.step()
with torch.no_grad():
    right = (model(images[1536:]).argmax(1) == labels[1536:]).float().mean()
print(f"right: {right:.1%}")
