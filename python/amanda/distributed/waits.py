"""Waits: when a program waits for the work of a collective, in Python."""

from __future__ import annotations

import threading
import time
from typing import Any

_lock = threading.Lock()  # guards what follows
_recorders: list[Any] = []
_wait_of_torch: Any = None


def note_in(recorder: Any) -> None:
    """From now on, the recorder is notified of each wait with `waited(work, start_ns, end_ns)`. Calls nest."""
    global _wait_of_torch
    import torch.distributed as dist

    with _lock:
        if not _recorders and dist.is_available() and dist.Work.wait is not _wait:
            _wait_of_torch = dist.Work.wait
            dist.Work.wait = _wait
        _recorders.append(recorder)


def stop_noting_in(recorder: Any) -> None:
    import torch.distributed as dist

    with _lock:
        _recorders.remove(recorder)
        # Another program's function stays: it may call ours.
        if not _recorders and dist.is_available() and dist.Work.wait is _wait:
            dist.Work.wait = _wait_of_torch


def _wait(work: Any, *arguments: Any, **options: Any) -> Any:
    start_ns = time.perf_counter_ns()
    try:
        return _wait_of_torch(work, *arguments, **options)
    finally:
        end_ns = time.perf_counter_ns()
        for recorder in tuple(_recorders):
            recorder.waited(work, start_ns, end_ns)
