"""Keeps the history of three training runs on handwritten digits: a plain one, one with a high rate, and a deep one.

The history has every tenth step: statistics of operators, gradients and parameters, as Parquet files and for
TensorBoard, in the folder `runs`. The loss alone does not show the problem; the alarms name it, with its place and its
first step.
"""

import itertools
import shutil

import amanda
import pandas
import sklearn.datasets
import torch
from amanda.tools.history import History
from torch import nn


def layers(activation, depth=3, width=32):
    sizes = [64, *[width] * depth]
    hidden = [layer for a, b in itertools.pairwise(sizes) for layer in (nn.Linear(a, b), activation())]
    return nn.Sequential(*hidden, nn.Linear(width, 10))


def train(name, model, learning_rate, steps=300):
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate)
    history = History(model, parquet=f"runs/{name}", tensorboard=f"runs/{name}", on_alarm=lambda alarm: None)
    with amanda.scheduled(history, schedule=amanda.Schedule(every=10)) as run:
        for _ in range(steps):
            batch = torch.randint(len(images), (64,))
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])
            loss.backward()
            optimizer.step()
            history.log(loss=loss)
            run.step()
    return history


torch.set_num_threads(1)  # the tensors are small
shutil.rmtree("runs", ignore_errors=True)  # those of the last time
digits = sklearn.datasets.load_digits()  # 1797 images of 8 x 8 pixels, a part of scikit-learn
images, labels = torch.tensor(digits.data, dtype=torch.float32) / 8 - 1, torch.tensor(digits.target)
for name, activation, depth, learning_rate in (
    ("plain", nn.ReLU, 3, 0.1),
    ("too fast", nn.ReLU, 3, 1.0),
    ("too deep", nn.Sigmoid, 12, 0.1),
):
    torch.manual_seed(0)
    model = layers(activation, depth)
    history = train(name, model, learning_rate)
    print(f"{name}: {len(history.alarms)} alarms")
    for alarm in history.alarms[:3]:
        print(f"  {alarm.kind} since step {alarm.began}: {alarm.text}")

frame = pandas.read_parquet("runs/plain/series")
ratios = frame[(frame["quantity"] == "update_ratio") & frame["name"].str.endswith("weight")]
table = ratios.pivot(index="step", columns="name", values="value")
print("\nupdate-to-weight ratios of the plain run")
print(table.iloc[::10].to_string(float_format="{:.5f}".format))
