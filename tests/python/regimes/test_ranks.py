"""Programs of several processes under gloo: what their ranks found comes together, and training is as without a tool."""

import dataclasses
import datetime
import json
import re
import socket

import amanda
import pytest
import torch
from process_groups import destroy_group
from rank_programs import line

PROGRAM = """
import os, sys, time
import torch
import torch.distributed as dist
import amanda
from amanda.tools.profile import Profile
from process_groups import destroy_group

how, folder, with_tool = sys.argv[1:]
rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
store = f"file://{folder}/store-{how}-{with_tool}"
dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world_size)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))
if how == "ddp":
    model = torch.nn.parallel.DistributedDataParallel(model)
else:
    from torch.distributed.fsdp import fully_shard

    mesh = dist.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),))
    model = fully_shard(model, mesh=mesh)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def slow(x):  # on one rank
    return torch.stack([torch.sin(x) for _ in range(200 if rank == 1 else 1)])


def train():
    for step in range(3):
        optimizer.zero_grad()
        x = torch.arange(16.0).reshape(2, 8) + rank + step
        (model(x).square().mean() + slow(x).mean()).backward()
        optimizer.step()


profile = Profile()
if with_tool == "yes":
    with amanda.apply(profile):
        train()
        found = amanda.distributed.gather(profile.rows(), value="calls")
        in_places = amanda.distributed.gather(profile.rows("id"))
    assert (found is None) == (rank != 0)
    profile.to_dataset(f"{folder}/places", "id")
    dist.barrier()
    if found:
        recorded = amanda.report(f"{folder}/places")
        for by in ("name", "rank"):
            assert sorted(map(repr, recorded.rows(by))) == sorted(map(repr, in_places.rows(by)))
        print("names", [(row.name, row.ranks, row.most, row.slowest_rank) for row in found.rows()])
        print("ranks", [(row.rank, row.total) for row in found.rows("rank")])
        print(found.table("rank"))
    if rank == 1:
        real = time.perf_counter_ns
        time.perf_counter_ns = lambda: real() + 5_000_000_000_000
    print("offset", rank, amanda.distributed.clock_offset(), flush=True)
    if rank == 1:
        time.perf_counter_ns = real
    amanda.distributed.gather_trace(profile, f"{folder}/trace.json")
else:
    train()
whole = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in model.parameters()]
if rank == 0:
    print("weights", [value for p in whole for value in p.flatten().tolist()])
dist.barrier()
destroy_group()
"""


@pytest.mark.parametrize(
    ("how", "count", "reads"),
    [
        ("ddp", 2, "aten::linear"),
        *(pytest.param(how, 4, "aten::linear", marks=pytest.mark.long) for how in ("ddp", "fsdp")),
    ],
)
def test_rows_and_traces_of_all_ranks(ranks, tmp_path, how, count, reads):
    outputs = ranks.program(PROGRAM, count, how, str(tmp_path), "yes")
    (alone, *_) = ranks.program(PROGRAM, count, how, str(tmp_path), "no")
    assert line(outputs[0], "weights") == line(alone, "weights")
    names = {name: rest for name, *rest in line(outputs[0], "names")}
    assert names["aten::sin"] == [count, 600, 1]  # the loop of rank 1
    assert names[reads] == [count, 6, 0]
    totals = [total for _, total in line(outputs[0], "ranks")]
    assert totals[1] - totals[0] == 597
    assert f"rank 1, {socket.gethostname()}" in outputs[0]
    offsets = [int(output.partition("offset ")[2].split()[1]) for output in outputs]
    assert offsets[0] == 0
    assert offsets[1] == pytest.approx(-5e12, abs=1e10)  # off by a message's time, which on a busy machine is long
    assert offsets[2:] == pytest.approx([0] * (count - 2), abs=1e10)  # processes of one machine have one clock
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert {event["pid"] for event in events} == set(range(count))
    spans = {rank: [e["ts"] for e in events if e["pid"] == rank and e["ph"] == "X"] for rank in range(count)}
    assert max(map(min, spans.values())) < min(map(max, spans.values()))  # they ran at the same time


def test_torchrun_sets_what_ranks_are_named_by(preloaded, tmp_path):
    launch = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--no-python", "env")
    printed = preloaded.run(*launch, folder=tmp_path).stdout
    found = re.findall(r"^(RANK|WORLD_SIZE)=(\d)$", printed, re.MULTILINE)
    assert sorted(found) == [("RANK", "0"), ("RANK", "1"), ("WORLD_SIZE", "2"), ("WORLD_SIZE", "2")]


def test_each_rank_has_its_files(ranks, preloaded, tmp_path):
    command = ("-m", "amanda", "run", "-t", "profile", "--format", "json,parquet", "--out", "out")
    ranks.program(PROGRAM, 2, "ddp", str(tmp_path), "no", command=command)
    rows = {row.name: row for row in amanda.report(tmp_path / "out", value="calls").rows()}
    assert (rows["aten::sin"].least, rows["aten::sin"].most, rows["aten::sin"].slowest_rank) == (3, 600, 1)
    assert {row.host for row in amanda.report(tmp_path / "out/profile/module").rows("rank")} == {socket.gethostname()}
    for rank in range(2):
        run = json.loads((tmp_path / f"out/run.rank{rank}.json").read_text())
        assert (run["rank"], run["world_size"], run["host"], run["status"]) == (rank, 2, socket.gethostname(), 0)
        rows = {
            row["name"]: row["calls"] for row in json.loads((tmp_path / f"out/profile.op.rank{rank}.json").read_text())
        }
        assert rows["aten::sin"] == (600 if rank else 3)
    (tmp_path / "alone.py").write_text("import torch; torch.ones(2).sin()")
    # One process: its parts of datasets have the names of rank 0's.
    refused = preloaded.run(*command, "alone.py", folder=tmp_path)
    assert (refused.returncode, "'out' holds a run already" in refused.stderr) == (2, True)
    (tmp_path / "out/profile/op/rank=1/mine").touch()
    assert preloaded.run(*command, "--overwrite", "alone.py", folder=tmp_path).returncode == 0
    files = json.loads((tmp_path / "out/run.json").read_text())["files"]
    assert "profile/op/rank=0/part-0.parquet" in files
    assert {str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*") if path.is_file()} == {
        *files,
        "run.json",
        "profile/op/rank=1/mine",
    }


@dataclasses.dataclass
class Counted:
    name: str
    calls: object


@dataclasses.dataclass
class Weighed:
    name: str
    grams: float


class FailsOnRank1:
    def __init__(self, rank):
        self.rank = rank

    def export_chrome_trace(self, path):
        if self.rank == 1:
            raise OSError("the disk is full")
        with open(path, "w") as file:
            arrow = {"name": "arrow", "ph": "s", "ts": 1.0, "id": 7}
            json.dump({"traceEvents": [arrow, {"ph": "E", "ts": 2.0}]}, file)


def gather_what_does_not_fit(rank, folder):
    store = f"file://{folder}/store"
    group = {"timeout": datetime.timedelta(minutes=3)}  # of what must not hang
    torch.distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=2, **group)
    gather, said = amanda.distributed.gather, []

    def attempt(call, *arguments, **options):
        try:
            found = call(*arguments, **options)
            rows = found.rows() if hasattr(found, "rows") else found
            said.append([(row.name, row.ranks, row.most) for row in rows] if rows else rows)
        except Exception as error:
            said.append(f"{type(error).__name__}: {error}")

    attempt(gather, [Counted("a", 1), Counted("b", None)] if rank else [])
    attempt(gather, [])
    attempt(gather, [Weighed("a", 1.5)] if rank else [Counted("a", 1)])
    attempt(gather, [Weighed("a", 1.5)] if rank else [], value="calls")
    attempt(gather, [(1, 2)] if rank else [])
    attempt(gather, [Counted("a", 1)] if rank else [], value="name")
    attempt(gather, [Weighed(lambda: 1 if rank else "a", 1.5)], value="grams")
    attempt(gather, [], to=2)
    attempt(amanda.distributed.gather_trace, FailsOnRank1(rank), f"{folder}/trace.json")
    attempt(amanda.distributed.gather_trace, FailsOnRank1(0), f"{folder}/trace.json", to=1)
    with open(f"{folder}/said{rank}", "w") as file:
        json.dump(said, file)
    destroy_group()


def test_a_rank_that_fails_leaves_no_other_waiting(ranks, tmp_path):
    ranks.function(gather_what_does_not_fit, 2, str(tmp_path))
    receiver, sender = (json.loads((tmp_path / f"said{rank}").read_text()) for rank in range(2))
    failed = "RuntimeError: [distributed] rank 1 has failed: "
    numbers = "device_ns, total_ns, host_ns, flops, calls, value"
    not_known = f"ValueError: [distributed] not all rows have one of {numbers}; those of the first are grams"
    no_field = "ValueError: [distributed] not all rows have the number 'calls'; those of the first are grams"
    no_rows = "TypeError: [distributed] gather takes rows of a tool, as profile.rows() returns them, got (1, 2)"
    no_group = "ValueError: [distributed] to= is a rank of the group, which has 2, got 2"
    assert receiver[:5] == [
        [["a", 1, 1.0], ["b", 1, 0.0]],
        [],
        failed + not_known,
        failed + no_field,
        failed + no_rows,
    ]
    assert sender[:5] == [None, None, not_known, no_field, no_rows]
    assert "not all rows have the number 'name'" in receiver[5]
    assert sender[5] in receiver[5]
    assert "pickle" in receiver[6]
    assert "pickle" in sender[6]
    assert (receiver[7], sender[7]) == (no_group, no_group)
    assert (receiver[8], sender[8]) == (failed + "OSError: the disk is full", "OSError: the disk is full")
    assert (receiver[9], sender[9]) == (None, None)
    arrows = [event for event in json.loads((tmp_path / "trace.json").read_text())["traceEvents"] if event["ph"] == "s"]
    assert sorted((arrow["pid"], arrow["id"]) for arrow in arrows) == [(0, "0.7"), (1, "1.7")]


def test_without_a_group():
    for call in (lambda: amanda.distributed.gather([]), amanda.distributed.clock_offset):
        with pytest.raises(RuntimeError, match=r"\[distributed\] torch.distributed has no process group; call"):
            call()
