"""A recurrent network reads handwritten digits, one pixel at a time."""

import torch
from sklearn.datasets import load_digits
from torch import nn


class Classifier(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.embed, self.decay = nn.Linear(1, width), nn.Parameter(torch.rand(width))
        self.out = nn.Linear(width, 10)

    def forward(self, images):
        x = self.embed(images.unsqueeze(2))
        state = torch.zeros_like(x[:, 0])
        for t in range(64):
            pixel = x[:, t]
            state = (pixel + self.decay * state).tanh()
        return self.out(state)


torch.manual_seed(0)
torch.set_num_threads(1)
digits = load_digits()
images, labels = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
model = Classifier()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(10):
    batch = slice(step * 128, step * 128 + 128)
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])
    loss.backward()
    optimizer.step()
