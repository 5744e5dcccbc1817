"""StackSamples: what the main thread of a program does, by looking at its stack every few milliseconds, as py-spy does."""

from __future__ import annotations

import bisect
import collections
import functools
import os
import sys
import threading
import time
from collections.abc import Sequence
from types import FrameType
from typing import NamedTuple

from amanda.driver.identity.frames import outwards
from amanda.reports.source_files import is_library

PERIOD = 0.005  # seconds
SWITCH = 0.0005
"""Seconds after which Python lets a thread that waits run. With its 5 ms, most samples would be of lines that let others
run by themselves, as operators do, and not of the lines before them."""
BUSY = 0.5  # of the time: a thread that was active for less has waited

_IMPORTS = "imports"
_LOADING = "data loading"
_BACKWARD = "backward passes"
_WAITING = "waiting, as for files, processes or threads"
PYTHON = "Python between operators"
_OWN = "Amanda's own work"
_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_LOADER = os.path.join("torch", "utils", "data", "dataloader.py")
_AUTOGRAD = os.path.join("torch", "autograd", "graph.py")


class _Sample(NamedTuple):
    at: int  # nanoseconds of time.perf_counter_ns
    seconds: float  # since the sample before
    what: str
    line: str  # the innermost line of the program


class Part(NamedTuple):
    """A part of a program's time outside operators."""

    what: str
    seconds: float
    line: str  # where most of it was; "" if no line of the program was on the stack


class StackSamples:
    """Samples, while it is entered, of the thread that enters it. A process that the program forks takes none."""

    def __init__(self) -> None:
        self._samples: list[_Sample] = []
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self.native_id = 0  # of the thread that is looked at
        self._switch = self._set = 0.0  # Python's seconds, before and while it is entered

    def __enter__(self) -> None:
        self.native_id, looked_at = threading.get_native_id(), threading.get_ident()
        take = functools.partial(self._take, looked_at, _Activity(looked_at, self.native_id))
        self._thread = threading.Thread(target=take, name="amanda samples", daemon=True)
        self._thread.start()
        self._switch = sys.getswitchinterval()
        sys.setswitchinterval(min(SWITCH, self._switch))
        self._set = sys.getswitchinterval()

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
        if sys.getswitchinterval() == self._set:  # else the program has set another one
            sys.setswitchinterval(self._switch + 5e-7)  # it cuts off what is less than a microsecond

    def _take(self, thread: int, activity: _Activity) -> None:
        before, active_before = time.perf_counter_ns(), activity.seconds()
        while not self._ended.wait(PERIOD):
            frame, at = sys._current_frames().get(thread), time.perf_counter_ns()
            # Before anything that lets the thread run, as the reading of a file does: it would leave these frames.
            found = None if frame is None else _what(frame)
            del frame  # it keeps the program's variables alive
            active = activity.seconds()
            if found is not None:
                passed, (what, line) = (at - before) / 1e9, found
                waits = active is not None and active_before is not None and active - active_before < BUSY * passed
                self._samples.append(_Sample(at, passed, what or (_WAITING if waits else PYTHON), line))
            before, active_before = at, active

    def parts(self, spans: Sequence[tuple[int, int]]) -> list[Part]:
        """The parts of the time outside operators, the largest first.

        Arguments:
            spans: when operators ran: begins and ends in nanoseconds of `time.perf_counter_ns`, in order.
        """
        begins = [begin for begin, _ in spans]
        seconds: dict[str, float] = collections.defaultdict(float)
        lines: dict[str, dict[str, float]] = collections.defaultdict(lambda: collections.defaultdict(float))
        for sample in list(self._samples):
            span = bisect.bisect_right(begins, sample.at) - 1
            if span >= 0 and sample.at < spans[span][1]:
                continue  # an operator runs
            seconds[sample.what] += sample.seconds
            if sample.line:
                lines[sample.what][sample.line] += sample.seconds
        parts = [
            Part(what, sum_, max(lines[what], key=lines[what].__getitem__, default=""))
            for what, sum_ in seconds.items()
        ]
        return sorted(parts, key=lambda part: -part.seconds)


class _Activity:
    """How long a thread has run, or has waited for a processor that others use: that is no waiting of the program."""

    def __init__(self, thread: int, native_id: int) -> None:
        self._file = f"/proc/self/task/{native_id}/schedstat"
        self._clock = time.pthread_getcpuclockid(thread) if hasattr(time, "pthread_getcpuclockid") else None

    def seconds(self) -> float | None:
        """None where the system does not measure it."""
        try:
            with open(self._file, "rb") as file:
                ran, waited, *_ = map(int, file.read().split())
            return (ran + waited) / 1e9
        except (OSError, ValueError):
            return time.clock_gettime(self._clock) if self._clock is not None else None


def _what(frame: FrameType) -> tuple[str, str]:
    """The part of the time that the innermost known frame stands for, "" if none is known; and the innermost line of the
    program."""
    what, line = _OWN if frame.f_code.co_filename.startswith(_OURS) else "", ""
    for each in outwards(frame):
        path, name = each.f_code.co_filename, each.f_code.co_name
        if not line and not is_library(path) and not path.startswith((_OURS, "<")):
            line = f"{path}:{each.f_lineno}"
        what = what or _told_by(path, name)
        if what and line:
            break
    return what, line


def _told_by(path: str, name: str) -> str:
    if path.startswith("<frozen importlib"):
        return _IMPORTS
    if name == "__next__" and path.endswith(_LOADER):
        return _LOADING
    return _BACKWARD if name == "_engine_run_backward" and path.endswith(_AUTOGRAD) else ""
