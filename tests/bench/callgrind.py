"""Instructions and misses of the first instruction cache per call or step, by valgrind. Instructions are exact, misses
those of a simulated cache; neither depends on what else the machine does.

Valgrind runs this file, which says by client requests what is to be counted: all else, warming up among it, runs ten
times faster. Rows run N and 2N times, callgrind writes a file for both, and the difference is that of N.
"""

import ctypes
import gc
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import process
import workloads
from configurations import BASELINE, CONFIGURATIONS, Configuration, Missing, phases, selected
from measure import VANILLA
from memory import nothing

# Twice these are run before: GradientCuts follows values in 16 passes, and then no longer.
COUNTS = {"torch.add": 400, "F.linear, grad": 200, "transformer layer, train": 12, "decode": 2}
CONTROL, ALL = "control", "all"
CACHE = "--I1=32768,8,64"  # of every machine the same: 32 KB
EVENTS = {"instructions": "Ir", "l1i misses": "I1mr"}


def counts(names, parts=()):
    """For each of `EVENTS`: the counts by workload and row, vanilla's among them; the workloads that `names` has and
    callgrind can bear. With `parts`: of the rows whose names have one of them, and of the baseline."""
    chosen = [name for name in COUNTS if name in names]
    found = {event: {name: {} for name in chosen} for event in EVENTS}
    for which in (CONTROL, ALL):
        for name, row, counted in under_valgrind(which, chosen, parts):
            for event, count in counted.items():
                found[event][name][row] = count
    return {
        event: [{"workload": name, "counts": rows} for name, rows in by_workload.items()]
        for event, by_workload in found.items()
    }


def under_valgrind(which, names, rows):
    compiler = os.environ.get("CC", "cc")
    if shutil.which("valgrind") is None or shutil.which(compiler) is None:
        raise SystemExit(f"[bench] --callgrind needs valgrind, with its headers, and {compiler} on the PATH")
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(__file__).with_name("client_requests.c"), Path(folder, "client_requests.so")
        subprocess.run([compiler, "-O1", "-shared", "-fPIC", source, "-o", library], check=True)
        command = ["valgrind", "--tool=callgrind", "--cache-sim=yes", CACHE, "--instr-atstart=no"]
        command += [
            f"--callgrind-out-file={folder}/out",
            sys.executable,
            __file__,
            str(library),
            which,
            json.dumps(rows),
            *names,
        ]
        environment = os.environ | {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"[bench] callgrind: {done.stderr[-2000:]}")
        parts = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
        for number, (name, row) in enumerate(parts):
            once, twice = (total(Path(folder, f"out.{2 * number + part}").read_text()) for part in (1, 2))
            yield name, row, {event: (twice[event] - once[event]) / COUNTS[name] for event in EVENTS}


def total(text):
    """The events that a file of callgrind's counts in all."""
    names = re.search(r"^events: (.*)$", text, re.M)[1].split()
    numbers = re.search(r"^totals: (.*)$", text, re.M)[1].split()
    counted = dict(zip(names, map(int, numbers), strict=False))  # trailing zeros are left out
    return {event: counted.get(name, 0) for event, name in EVENTS.items()}


def program(requests, which, rows, names):
    """What valgrind runs."""
    process.prepare()
    if which == CONTROL:
        order = [[Configuration(VANILLA, nothing)]]
    else:
        import amanda  # noqa: F401
        from peers import PEERS

        order = phases([Configuration(BASELINE, nothing), *CONFIGURATIONS, *PEERS])
    chosen = [workload for workload in workloads.WORKLOADS if workload.name in names]
    bodies = [workload.make(False) for workload in chosen]
    for workload, body in zip(chosen, bodies, strict=True):
        body.run(2 * COUNTS[workload.name])
    for phase in order:
        for workload, body in zip(chosen, bodies, strict=True):
            for row in phase:
                if (row.name in (VANILLA, BASELINE) or selected(row.name, rows)) and count_row(
                    requests, row, workload, body
                ):
                    print(json.dumps([workload.name, row.name]), flush=True)


def count_row(requests, row, workload, body):
    """Counts it; False if it cannot be had."""
    count = COUNTS[workload.name]
    # The first two fill what a tool keeps, and the simulated cache.
    after = {0: requests.start, 1: requests.zero, 2: requests.dump, 3: requests.dump}
    try:
        with row.open(workload, body) as session:
            # One call: another call would be another place, and be analyzed first.
            for index, times in enumerate((2 * count, max(1, count // 20), count, 2 * count)):
                session.run(times)
                after[index]()
    except Missing:
        return False
    finally:
        requests.stop()
        gc.collect()
    return True


if __name__ == "__main__":
    program(ctypes.PyDLL(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3]), sys.argv[4:])
