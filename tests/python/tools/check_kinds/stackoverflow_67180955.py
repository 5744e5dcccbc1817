"""Stack Overflow 67180955: each worker of a DataLoader has the same random numbers."""

import random

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

FINDS = "workers-alike"


class Noise(Dataset):
    def __init__(self):
        self.generator = np.random.default_rng(0)

    def __len__(self):
        return 24

    def __getitem__(self, index):
        return torch.from_numpy(self.generator.normal(size=4).astype("float32"))


def reseed(worker):
    torch.utils.data.get_worker_info().dataset.generator = np.random.default_rng(random.Random(worker).getrandbits(32))


def wrong(worker_init_fn=None):
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for batch in DataLoader(Noise(), 4, num_workers=2, worker_init_fn=worker_init_fn):
        optimizer.zero_grad()
        F.mse_loss(model(batch), batch).backward()  # wrong
        optimizer.step()


def right():
    wrong(reseed)
