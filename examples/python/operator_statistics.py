"""Finds units of a network that do not learn, by statistics of every operator over a whole training run.

A ReLU unit that never fires gets no gradient and stays dead. The loss does not show this; the share of zeros behind
each ReLU does. The same network is trained twice, the second time with a learning rate far too large.
"""

import amanda
import torch
from amanda.tools.statistics import OpStatistics


def train(learning_rate, steps=200):
    """Fits y = sin(3 a) + b * b, from 256 points; returns the last loss and the statistics of the run."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(2, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate)
    x = torch.rand(256, 2) * 4 - 2
    y = torch.sin(3 * x[:, :1]) + x[:, 1:] ** 2
    statistics = OpStatistics()
    for _ in range(steps):
        with amanda.apply(statistics):
            prediction = model(x)
        loss = torch.nn.functional.mse_loss(prediction, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item(), statistics


for learning_rate in (0.05, 0.4):
    loss, statistics = train(learning_rate)
    table = statistics.to_pandas().rename(columns={"module_path": "module"})
    print(f"learning rate {learning_rate}: loss {loss:.3f}")
    columns = ["name", "module", "calls", "min", "max", "mean", "std", "sparsity", "nans", "infs"]
    print(table[columns].to_string(index=False, float_format="{:.3g}".format))
    dead = table[(table["name"] == "aten::relu") & (table["sparsity"] > 0.9)]
    print("mostly dead: " + (", ".join("module " + dead["module"]) or "none") + "\n")
