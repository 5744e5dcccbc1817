"""Peak resident memory of a few steps: of each row, the median over fresh processes."""

import contextlib
import resource
import statistics

import process
import workloads
from configurations import BASELINE, CONFIGURATIONS, Configuration, Missing, Session
from measure import VANILLA

STEPS = 5
WORKLOADS = [workload for workload in workloads.WORKLOADS if workload.unit == "step" and "forward" not in workload.name]
ROWS = [
    "C++ routine, forward and backward",
    "Python routine, forward and backward",
    "tools.profile",
    "torch.profiler, CPU",
]


@contextlib.contextmanager
def nothing(workload, body):
    yield Session(body.run)


def peak_bytes(workload_name, row_name, full):
    process.prepare()
    workload = next(w for w in workloads.WORKLOADS if w.name == workload_name)
    body = workload.make(full)
    if row_name != VANILLA:
        import amanda  # noqa: F401
    with find(row_name).open(workload, body) as session:
        session.run(STEPS)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def find(name):
    if name in (VANILLA, BASELINE):
        return Configuration(name, nothing)
    from peers import PEERS

    return next(row for row in [*CONFIGURATIONS, *PEERS] if row.name == name)


def peaks(workload, settings):
    """Row name to peak bytes."""
    found = {}
    for row in [VANILLA, BASELINE, *ROWS]:
        try:
            found[row] = statistics.median(process.repeated(settings, peak_bytes, workload.name, row, settings.full))
        except process.Failed as error:
            if error.kind is not Missing:
                raise
    return {"workload": workload.name, "peak_bytes": found}
