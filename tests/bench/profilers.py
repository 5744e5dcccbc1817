"""CuptiProfiler beside torch.profiler on the CPU: `python tests/bench/profilers.py`.

A train step of a transformer layer, in CPU time of the process, as ratios to the step without a profiler: while a scope
is open, and with entering and leaving it, when torch.profiler puts its events in order.
"""

import contextlib
import statistics
import time

import markdown_page
import process
import workloads
from configurations import BASELINE, Session, applied
from memory import find

ROUNDS = 15
WARM = 12  # steps of a scope that are not in the first column: the first one is analyzed
STEPS = 40


def _cupti(body, **options):
    from amanda.tools.cupti_profiler import CuptiProfiler

    return applied(body, CuptiProfiler(gpu=False, **options))


@contextlib.contextmanager
def _torch_with_memory(body):
    import torch

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True):
        yield Session(body.run)


def _cpu_times(opened):
    """Nanoseconds a step: of those in the middle, and of all with entering and leaving."""
    entered = time.process_time_ns()
    with opened as session:
        session.run(WARM)
        began = time.process_time_ns()
        session.run(STEPS)
        ended = time.process_time_ns()
    return (ended - began) / STEPS, (time.process_time_ns() - entered) / (WARM + STEPS)


def main():
    process.prepare()
    workload = next(one for one in workloads.WORKLOADS if one.name == "transformer layer, train")
    body = workload.make(False)
    body.run(20)

    def row(name):
        return find(name).open(workload, body)

    ways = {
        "an empty C++ routine, forward and backward": lambda: row("C++ routine, forward and backward"),
        "`CuptiProfiler(gpu=False, nested=False)`": lambda: _cupti(body, nested=False),
        "`CuptiProfiler(gpu=False)`": lambda: _cupti(body),
        "`torch.profiler`, CPU": lambda: row("torch.profiler, CPU"),
        "`torch.profiler`, CPU, with memory": lambda: _torch_with_memory(body),
    }
    ratios = {name: [] for name in ways}
    for _ in range(ROUNDS):
        plain = _cpu_times(row(BASELINE))
        for name, opened in ways.items():
            ratios[name].append([under / without for under, without in zip(_cpu_times(opened()), plain, strict=True)])
    rows = [
        [name, *(f"{statistics.median(column):.2f}" for column in zip(*found, strict=True))]
        for name, found in ratios.items()
    ]
    print(markdown_page.table(["under", "in the scope", "with entering and leaving"], rows))


if __name__ == "__main__":
    main()
