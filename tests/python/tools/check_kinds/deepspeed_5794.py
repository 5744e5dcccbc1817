"""DeepSpeed 5794: ranks of a mixture of experts call all_to_all differently, as each counts its own tokens, and hang."""

import contextlib
import datetime

import torch
import torch.distributed as dist

FINDS = "collectives-differ"
RANKS = 2
CAPACITY = 4


def wrong(agree=False):
    tokens = torch.randn(2 * (4 + 2 * dist.get_rank()), 4)
    rounds = torch.tensor(-(-len(tokens) // (2 * CAPACITY)))
    if agree:
        dist.all_reduce(rounds, dist.ReduceOp.MAX)
    with contextlib.suppress(RuntimeError):
        for _ in range(rounds):
            sent, received = torch.zeros(2 * CAPACITY, 4), torch.zeros(2 * CAPACITY, 4)
            work = dist.all_to_all_single(received, sent, async_op=True)  # wrong
            work.wait(datetime.timedelta(seconds=2))  # as a hang that somebody ends
        dist.barrier(async_op=True).wait(datetime.timedelta(seconds=2))


def right():
    wrong(agree=True)
