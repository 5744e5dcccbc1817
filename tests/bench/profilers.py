"""CuptiProfiler beside torch.profiler on the CPU: `python tests/bench/profilers.py`.

A train step of a transformer layer, in CPU time of the process, as ratios to the step without a profiler: while a scope
is open, and with entering and leaving it, when torch.profiler puts its events in order.
"""

import contextlib
import statistics
import time

import configurations
import markdown_page
import process
import workloads

ROUNDS, WARM, STEPS = (
    15,
    12,
    40,
)  # of the steps of a scope, the first ones are analysed, and are not in the first column


@contextlib.contextmanager
def _nothing(body):
    yield body.run


@contextlib.contextmanager
def _routine(workload, body):
    row = next(row for row in configurations.CONFIGURATIONS if row.name == "C++ routine, forward and backward")
    with row.open(workload, body) as session:
        yield session.run


@contextlib.contextmanager
def _cupti(body, **options):
    import amanda
    from amanda.tools.cupti_profiler import CuptiProfiler

    with amanda.apply(CuptiProfiler(gpu=False, **options)):
        yield body.run


@contextlib.contextmanager
def _torch(body, memory):
    import torch

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=memory):
        yield body.run


def _cpu_times(opened):
    """Nanoseconds a step: of those in the middle, and of all with entering and leaving."""
    entered = time.process_time_ns()
    with opened as run:
        run(WARM)
        began = time.process_time_ns()
        run(STEPS)
        ended = time.process_time_ns()
    return (ended - began) / STEPS, (time.process_time_ns() - entered) / (WARM + STEPS)


def main():
    process.prepare()
    workload = next(one for one in workloads.WORKLOADS if one.name == "transformer layer, train")
    body = workload.make(False)
    body.run(20)
    ways = {
        "an empty C++ routine, forward and backward": lambda: _routine(workload, body),
        "`CuptiProfiler(gpu=False, nested=False)`": lambda: _cupti(body, nested=False),
        "`CuptiProfiler(gpu=False)`": lambda: _cupti(body),
        "`torch.profiler`, CPU": lambda: _torch(body, False),
        "`torch.profiler`, CPU, with memory": lambda: _torch(body, True),
    }
    ratios = {name: [] for name in ways}
    for _ in range(ROUNDS):
        plain = _cpu_times(_nothing(body))
        for name, opened in ways.items():
            ratios[name].append([under / without for under, without in zip(_cpu_times(opened()), plain, strict=True)])
    rows = [
        [name, *(f"{statistics.median(column):.2f}" for column in zip(*found, strict=True))]
        for name, found in ratios.items()
    ]
    print(markdown_page.table(["under", "in the scope", "with entering and leaving"], rows))


if __name__ == "__main__":
    main()
