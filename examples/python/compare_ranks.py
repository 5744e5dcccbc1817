"""Two processes train together, and one is slow. Finds which one, where, and how long the other one waits for it.

Each rank writes its part of a recording, which `amanda.report` compares afterwards, with DuckDB.
"""

import os
import tempfile
import time

import amanda
import torch
import torch.distributed as dist
from amanda.tools.profile import Profile

STEPS = 20


def augmented(x: torch.Tensor, rank: int) -> torch.Tensor:
    for _ in range(60 if rank == 1 else 1):  # the mistake
        x = x + 0.01 * torch.randn_like(x).sin()
    return x


def train(rank: int) -> None:
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(
        torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(augmented(torch.randn(512, 256), rank)).square().mean().backward()
        optimizer.step()


def work(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    profile, collectives = Profile(), amanda.distributed.Collectives()
    with amanda.apply(profile, collectives):
        train(rank)
    profile.to_dataset(f"{folder}/results", "op")
    waits = amanda.distributed.waiting(collectives)
    if waits:
        print(waits.table())
        print(waits.table("op"))
    time.sleep(0.1)  # gloo's thread lets go of its last work
    dist.destroy_process_group()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(work, (folder,), nprocs=2)
        found = amanda.report(os.path.join(folder, "results"))
        print(found.table(top=5))
        print(found.table("rank"))
        ranks = found.to_pandas("rank").set_index("name")
        print(f"slowest: {ranks['total'].idxmax()}; most of it in {found.rows()[0].name}")


if __name__ == "__main__":
    main()
