"""How long collectives wait for late ranks: programs in which one rank sleeps for a known time."""

import pytest
from rank_programs import line

PROGRAM = """
import os, sys, time
import torch
import torch.distributed as dist
import amanda
from process_groups import destroy_group

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
dist.init_process_group("gloo", init_method="file://" + os.path.abspath("store"), rank=rank, world_size=size)
measured_offset, clocks = amanda.distributed.clock_offset, sys.modules["amanda.distributed.waiting"]
offsets = []  # of this rank's clock, as `waiting` takes it to be; in truth all ranks have one clock


def offset(**options):
    offsets.append(measured_offset(**options))
    return offsets[-1]


clocks.clock_offset = offset
halves = [dist.new_group([0]), dist.new_group(list(range(1, size)))]


def late(which, seconds):
    dist.barrier()  # all are equally far
    if rank == which:
        time.sleep(seconds)


def trained():
    torch.manual_seed(0)
    layers = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))
    model = torch.nn.parallel.DistributedDataParallel(layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        model(torch.ones(2, 8) + rank + step).square().mean().backward()
        optimizer.step()
    return model


def by_hand():
    late(0, 0.5)
    group = halves[min(rank, 1)]
    begun = time.perf_counter_ns()
    for _ in range(4):
        dist.broadcast(torch.ones(2), 0 if rank == 0 else 1, group=group)  # rank 0 has this group for itself
    before = time.perf_counter_ns()
    work = dist.all_reduce(torch.ones(2), async_op=True)
    print("broadcasts", (begun, before))
    print("started", (before, time.perf_counter_ns()))
    work.wait()
    if rank < 2:
        dist.send(torch.ones(2), 1) if rank == 0 else dist.recv(torch.ones(2), 0)


collectives = amanda.distributed.Collectives()
alone = trained()
with amanda.apply(collectives):
    model = trained()
    print("ddp", [op for op, _, _ in collectives.started()])
    collectives.reset()
assert all(torch.equal(*pair) for pair in zip(alone.parameters(), model.parameters(), strict=True))
with amanda.apply(collectives):
    by_hand()
found = amanda.distributed.waiting(collectives)
assert (found is None) == (rank != 0)
if found:
    print("ops", [(r.name, r.rank, r.calls, r.waited_ns, r.longest_ns, r.last) for r in found.rows("op")])
    print("ranks", [(r.name, r.calls, r.last) for r in found.rows()])
    print("groups", sorted({(r.group == "0", r.name) for r in found.rows("op")}))
if rank == 0:
    collectives.reset()  # it lacks what the others have
try:
    amanda.distributed.waiting(collectives)
except RuntimeError as error:
    print(error)
collectives.reset()
dist.all_reduce(torch.ones(2))
assert collectives.started() == []  # nobody listens any more
with amanda.apply(collectives):
    late(1, 0.3)
    begun = time.perf_counter_ns()
    model(torch.ones(2, 8)).sum().backward()
    print("trained", (begun, time.perf_counter_ns()))
found = amanda.distributed.waiting(collectives)
if found:
    print("backward", [(r.name, r.rank, r.waited_ns, r.last) for r in found.rows("op")])
    print("in_backward", [(r.blocked_ns, r.blocked_calls) for r in found.rows("op") if r.name == "c10d::allreduce_"])
collectives.reset()
wait = dist.Work.wait
with amanda.apply(collectives), amanda.apply(amanda.distributed.Collectives()):
    late(1, 0.4)
    begun = time.perf_counter_ns()
    dist.all_reduce(torch.ones(2))
    measured = begun, time.perf_counter_ns()
    late(1, 0.4)
    works, inside, gathered = [], [], [torch.ones(2) for _ in range(size)]
    for start in (lambda: dist.all_gather(gathered, torch.ones(2), async_op=True),
                  lambda: dist.broadcast(torch.ones(2), 0, async_op=True)):
        begun = time.perf_counter_ns()
        works.append(start())
        inside.append(time.perf_counter_ns() - begun)
    time.sleep(0.1 if rank == 1 else 0.7)  # other work, until all have started
    for which in (1, 0):
        begun = time.perf_counter_ns()
        works[which].wait()
        inside[which] += time.perf_counter_ns() - begun
        works[which].wait()  # it has ended
assert dist.Work.wait is wait
found = amanda.distributed.waiting(collectives)
print("measured", measured)
print("inside", inside)
if found:
    print("blocked", [(r.name, r.rank, r.calls, r.blocked_calls, r.blocked_ns, r.waited_ns) for r in found.rows("op")])
    print("blocked_by_rank", [(r.rank, r.blocked_calls, r.blocked_ns) for r in found.rows()])
assert offsets
print("offsets", offsets)
dist.barrier()
destroy_group()
"""


def clocks_differ(outputs):
    """By how many ns two ranks' clocks may be taken to differ: well below what the ranks sleep, and more on a busy machine,
    where messages take longer."""
    return int(0.2e9) + 2 * max(abs(offset) for output in outputs for offset in line(output, "offsets"))


@pytest.mark.parametrize("count", [2, pytest.param(4, marks=pytest.mark.long)])
def test_collectives_wait_for_the_rank_that_sleeps(ranks, count):
    outputs = ranks.program(PROGRAM, count)
    clocks = clocks_differ(outputs)
    for output in outputs:  # a bucket of gradients for each step, from the backward pass
        started = line(output, "ddp")
        assert started.count("c10d::allreduce_") == 3
    rows = {(name, rank): figures for name, rank, *figures in line(outputs[0], "ops")}
    assert set(rows) == {(f"c10d::{op}", r) for op in ("barrier", "broadcast_", "allreduce_") for r in range(count)}
    others = range(1, count)
    assert {rank: rows["c10d::allreduce_", rank][0] for rank in range(count)} == dict.fromkeys(range(count), 1)
    assert rows["c10d::allreduce_", 0][1:] == [0, 0, 1]  # it slept
    started = [line(output, "started") for output in outputs]  # not before, and not after
    for rank in others:
        _, waited, longest, last = rows["c10d::allreduce_", rank]
        assert waited == longest
        assert started[0][0] - started[rank][1] - clocks < waited < started[0][1] - started[rank][0] + clocks
        assert last == 0
    assert rows["c10d::broadcast_", 0] == [4, 0, 0, 4]  # alone in its group
    began, ended = zip(*(line(outputs[rank], "broadcasts") for rank in others), strict=True)
    for rank in others:  # rank 0's sleep is not theirs; a source returns before the others have started
        assert rows["c10d::broadcast_", rank][1] < 4 * (max(ended) - min(began)) + clocks
    assert line(outputs[0], "groups") == [
        (False, "c10d::broadcast_"),
        (True, "c10d::allreduce_"),
        (True, "c10d::barrier"),
    ]
    ranks = {name.partition(",")[0]: figures for name, *figures in line(outputs[0], "ranks")}
    assert set(ranks) == {f"rank {rank}" for rank in range(count)}
    assert ranks["rank 0"][0] == ranks["rank 1"][0] == 6
    backward = {(name, rank): figures for name, rank, *figures in line(outputs[0], "backward")}
    assert backward["c10d::allreduce_", 1] == [0, 1]
    trained = [line(output, "trained") for output in outputs]
    for rank in {*range(count)} - {1}:
        waited, last = backward["c10d::allreduce_", rank]
        assert waited < trained[1][1] - trained[rank][0] + clocks
        assert (waited > 0) == (last == 0)
    # DDP waits in C++.
    assert line(outputs[0], "in_backward") == [(None, 0)] * count
    check_blocked(outputs)
    assert (
        "[distributed] ranks 0 and 1 have not started the same collectives in group '0': 0 and 2 of them; enter and "
        "leave the scope at the same place in all ranks\n"
    ) in outputs[0]


def check_blocked(outputs):
    """Rank 1 sleeps 0.4 s before an all_reduce, which blocks the others; then before two that nobody waits for so long."""
    clocks = clocks_differ(outputs)
    rows = {(name, rank): figures for name, rank, *figures in line(outputs[0], "blocked")}
    for calls, known, blocked, waited in rows.values():
        assert calls == known
        assert 0 <= blocked <= waited
    assert rows["c10d::allreduce_", 1][2:] == [0, 0]  # it came last
    for rank in {*range(len(outputs))} - {1}:
        _, _, blocked, _ = rows["c10d::allreduce_", rank]
        begun, ended = line(outputs[rank], "measured")  # by the program's own clock
        assert line(outputs[1], "measured")[0] - begun - clocks < blocked < ended - begun + clocks
        for op, took in zip(("c10d::allgather_", "c10d::broadcast_"), line(outputs[rank], "inside"), strict=True):
            _, _, blocked, _ = rows[op, rank]
            assert blocked < took + clocks  # of a call and a wait; else it did other work
    for rank, known, blocked in line(outputs[0], "blocked_by_rank"):
        of_rank = [figures for (_, number), figures in rows.items() if number == rank]
        assert [known, blocked] == [sum(figures[1] for figures in of_rank), sum(figures[2] for figures in of_rank)]


def test_the_example_finds_the_slow_rank(run_example):
    slowest = run_example("compare_ranks.py").splitlines()[-1]
    assert slowest.startswith("slowest: rank 1, ")
    assert slowest.endswith("; most of it in aten::randn_like")
