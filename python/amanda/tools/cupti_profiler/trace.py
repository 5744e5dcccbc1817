"""The Chrome trace of a CuptiProfiler: operators, launches and kernels, with arrows between them."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import torch

from amanda import __version__
from amanda.toolkit import chrome_trace
from amanda.toolkit.chrome_trace import Event, arrow, metadata, slice_of
from amanda.toolkit.native import cupti

_FIRST_DEVICE_PID = 1 << 22  # above every process id
_LAUNCHES_TID = 0  # for launches whose operator is unknown or no longer kept


def write(path: str | os.PathLike[str], profile: cupti.KernelProfile, rank: int | None, notes: list[str]) -> None:
    """Writes the trace; see CuptiProfiler.export_chrome_trace."""
    rank, world = _rank(rank)
    runs, activities = profile.runs(), profile.activities()
    events = [
        *_host_metadata(runs, rank),
        *_device_metadata(activities, rank),
        *_operators(profile, runs),
        *_kernels(activities, {run.run: run for run in runs}),
    ]
    chrome_trace.write(
        path,
        events,
        baseTimeNanoseconds=time.time_ns() - time.monotonic_ns(),
        distributedInfo={"rank": rank, "world_size": world, "hostname": socket.gethostname()},
        deviceProperties=_device_properties(activities),
        otherData={"amanda": __version__, "torch": torch.__version__, "cupti": profile.library},
        notes=notes,
    )


def _rank(given: int | None) -> tuple[int, int]:
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        rank, world = distributed.get_rank(), distributed.get_world_size()
    else:
        rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    return (rank if given is None else given), world


def _host_metadata(runs: list[cupti.RunEvent], rank: int) -> Iterator[Event]:
    pid = os.getpid()
    yield metadata("process_name", pid, 0, name=f"rank {rank}: host")
    yield metadata("process_sort_index", pid, 0, sort_index=0)
    names = {thread.native_id: thread.name for thread in threading.enumerate()}
    for thread in sorted({run.thread for run in runs}):
        yield metadata("thread_name", pid, thread, name=names.get(thread, f"thread {thread}"))


def _device_metadata(activities: list[cupti.ActivityEvent], rank: int) -> Iterator[Event]:
    for device in sorted({activity.device for activity in activities}):
        pid = _FIRST_DEVICE_PID + device
        yield metadata("process_name", pid, 0, name=f"rank {rank}: GPU {device}")
        yield metadata("process_sort_index", pid, 0, sort_index=1 + device)
        for stream in sorted({activity.stream for activity in activities if activity.device == device}):
            yield metadata("thread_name", pid, stream, name=f"stream {stream}")


def _operators(profile: cupti.KernelProfile, runs: list[cupti.RunEvent]) -> Iterator[Event]:
    nodes, operators, pid = profile.nodes(), profile.operators(), os.getpid()  # in this order: they may run meanwhile
    for run in runs:
        node = nodes[run.node]
        op = operators[node.op]
        yield slice_of(
            op.name,
            node.phase,
            pid,
            run.thread,
            run.start_ns,
            run.end_ns,
            module_path=op.module_path,
            source=op.source,
            phase=node.phase,
            op_id=f"{op.op_id:016x}",
            run=run.run,
            allocated_bytes=run.measures.allocated_bytes,
            freed_bytes=run.measures.freed_bytes,
        )


def _kernels(activities: list[cupti.ActivityEvent], runs: dict[int, cupti.RunEvent]) -> Iterator[Event]:
    pid, launched, named = os.getpid(), set(), False
    for number, activity in enumerate(activities):
        if not 0 < activity.start_ns <= activity.end_ns:
            continue  # its times are unknown; the notes say so
        device = _FIRST_DEVICE_PID + activity.device
        args = {"device": activity.device, "stream": activity.stream, "correlation": activity.correlation_id}
        if activity.run is not None:
            args["run"] = activity.run
        if activity.kind != "kernel":
            args["bytes"] = activity.bytes
        yield slice_of(
            activity.name, activity.kind, device, activity.stream, activity.start_ns, activity.end_ns, **args
        )
        run = runs.get(activity.run) if activity.run is not None else None
        thread = run.thread if run else _LAUNCHES_TID
        steps = [(run.start_ns, pid, thread)] if run else []
        if activity.launch:
            start, end = activity.launch
            if thread == _LAUNCHES_TID and not named:
                named = True
                yield metadata("thread_name", pid, thread, name="launches outside the operators shown")
            if (activity.correlation_id, start) not in launched:
                launched.add((activity.correlation_id, start))
                yield slice_of("launch", "launch", pid, thread, start, end, correlation=activity.correlation_id)
            steps.append((start, pid, thread))
        yield from arrow("launch", number, [*steps, (activity.start_ns, device, activity.stream)])


def _device_properties(activities: list[cupti.ActivityEvent]) -> list[dict[str, Any]]:
    found = []
    for device in sorted({activity.device for activity in activities}):
        properties: dict[str, Any] = {"id": device}
        if torch.cuda.is_available() and device < torch.cuda.device_count():
            known = torch.cuda.get_device_properties(device)
            properties |= {
                "name": known.name,
                "totalGlobalMem": known.total_memory,
                "computeMajor": known.major,
                "computeMinor": known.minor,
                "numSms": known.multi_processor_count,
            }
        found.append(properties)
    return found
