"""Finds the slow line of a training step: a recurrent network reads handwritten digits pixel by pixel.

The step spends its time in `backward()`, and that line says nothing about the cause. Backward operators count for the line
that created them, so the listing names it: `x[:, t]` is free forward, but its gradient is as large as all of `x`.
"""

import amanda
import torch
from amanda.tools.profile import Profile
from sklearn.datasets import load_digits

STEPS, BATCH, WIDTH = 3, 128, 64


class Classifier(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.decay = torch.nn.Linear(1, WIDTH), torch.nn.Parameter(torch.rand(WIDTH))
        self.out = torch.nn.Linear(WIDTH, 10)

    def forward(self, images):
        x = self.embed(images.unsqueeze(2))
        state = torch.zeros(len(images), WIDTH)
        for t in range(64):
            pixel = x[:, t]
            state = (pixel + self.decay * state).tanh()
        return self.out(state)


class Faster(Classifier):
    def forward(self, images):
        state = torch.zeros(len(images), WIDTH)
        for pixel in self.embed(images.unsqueeze(2)).unbind(1):
            state = (pixel + self.decay * state).tanh()
        return self.out(state)


def profiled(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    profile = Profile(backward=True)
    with amanda.apply(profile):
        for step in range(STEPS + 1):
            batch = slice(step * BATCH, step * BATCH + BATCH)
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(images[batch]), labels[batch])
            loss.backward()
            optimizer.step()
            if step == 0:
                profile.reset()  # the first step takes longer
    return profile


torch.manual_seed(0)
torch.set_num_threads(1)
digits = load_digits()
images, labels = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)

profile, faster = profiled(Classifier()), profiled(Faster())
print(profile.annotate(context=1))
row = max(profile.rows("line"), key=lambda row: row.backward_ns)
print(f"\nline {row.source.rpartition(':')[2]}: {row.share:.0%} of the time in operators", end=", ")
print(f"{row.forward_ns / STEPS / 1e6:.2f} ms forward and {row.backward_ns / STEPS / 1e6:.2f} ms backward per step")
before, after = (sum(row.total_ns for row in each.rows()) / STEPS / 1e6 for each in (profile, faster))
print(f"with unbind: {before:.1f} ms -> {after:.1f} ms")
