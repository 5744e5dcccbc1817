"""A training script that knows nothing of Amanda: a small transformer reads handwritten digits row by row.

`amanda run --html page.html -t 'profile(backward=True)' -t memory examples/python/train_digits.py` makes a page about it:
which modules and lines take the time, when operators ran, and what was in memory. See docs/reports.md.
"""

import torch
from sklearn.datasets import load_digits

STEPS, BATCH, WIDTH = 15, 256, 64


class Reader(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Linear(8, WIDTH)
        self.places = torch.nn.Parameter(torch.randn(8, WIDTH) * 0.1)
        layer = torch.nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, batch_first=True)
        self.encoder = torch.nn.TransformerEncoder(layer, 2)
        self.out = torch.nn.Linear(WIDTH, 10)

    def forward(self, images):
        return self.out(self.encoder(self.embed(images) + self.places).mean(1))


def main():
    torch.manual_seed(0)
    digits = load_digits()
    images, labels = torch.tensor(digits.images, dtype=torch.float32) / 16, torch.tensor(digits.target)
    model = Reader()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    for step in range(STEPS):
        chosen = torch.randint(len(images), (BATCH,))
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(images[chosen]), labels[chosen])
        loss.backward()
        optimizer.step()
        if step % 5 == 4:
            print(f"step {step + 1}: loss {loss.item():.2f}")


if __name__ == "__main__":
    main()
